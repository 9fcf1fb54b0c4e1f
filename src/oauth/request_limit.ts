/**
 * Limits how many authorization, pushed authorization (RFC 9126 section 2.3) and device requests one address may start
 * per minute: each stores a row and requires no credentials.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../http/problem.ts';
import { countAddress } from '../http/rate_limit.ts';
import { basicClientId } from './explanation.ts';
import { addressRemedy, limitedError, reportLimited } from './limited_request.ts';
import type { ProviderOptions } from './provider_options.ts';

/** Endpoints that start a flow. */
const limitedPaths = new Set(['/oauth/authorize', '/oauth/par', '/oauth/device']);

const description = 'too many requests, try again later';

/** @returns true if the request exceeded the limit and the response has been sent */
export type RejectIfLimited = (request: FastifyRequest, reply: FastifyReply, path: string) => boolean;

export function createRequestLimit({
  limiter,
  pages,
  traces,
  clients,
}: Pick<ProviderOptions, 'limiter' | 'pages' | 'traces' | 'clients'>): RejectIfLimited {
  return (request, reply, path) => {
    if (!limitedPaths.has(path)) return false;
    try {
      countAddress(limiter, 'begin ', request.ip);
      return false;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      // The body of the other requests is not read.
      const { client_id: inQuery } = request.query as Record<string, unknown>;
      const clientId = inQuery ?? basicClientId(request.headers.authorization ?? '');
      reportLimited(traces, clients, {
        ...{ name: 'authorize', requestId: request.id, address: request.ip, clientId, problem: error },
        remedy: `It counts the authorization requests and sign-ins that begin at one address. ${addressRemedy}`,
        keys: () => [],
      });
      reply.code(error.status).headers(error.headers).header('cache-control', 'no-store');
      if (path === '/oauth/authorize') {
        reply
          .type('text/html; charset=utf-8')
          .send(pages.error({ code: limitedError, description, requestId: request.id }));
      } else reply.send({ error: limitedError, error_description: description });
      return true;
    }
  };
}
