/**
 * Limits how many authorization requests one address may start
 * per minute, and how many pages of sign-out and devices it may open: each stores a row and requires no credentials. So does each change of
 * a registration, for which anyone can register: the audit log keeps it. Pushed and device requests may have credentials (endpoint_limit.ts).
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../http/problem.ts';
import { countAddress } from '../http/rate_limit.ts';
import { isOfOtherPage } from './endpoint_request.ts';
import { addressRemedy, limitedError, reportLimited } from './limited_request.ts';
import type { ProviderOptions } from './provider_options.ts';
import { registrationPath } from './registration/registration.ts';

const authorizePath = '/oauth/authorize';
const otherPaths = new Set(['/oauth/logout', '/device', `${registrationPath}/:clientId`]);
const pagePaths = new Set([authorizePath, '/oauth/logout', '/device']);

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
    if (path !== authorizePath && !otherPaths.has(path)) return false;
    try {
      countAddress(limiter, isOfOtherPage(request.raw) ? 'begin embedded ' : 'begin ', request.ip);
      return false;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (path === authorizePath) report(request, error);
      reply.code(error.status).headers(error.headers).header('cache-control', 'no-store');
      if (pagePaths.has(path)) {
        reply
          .type('text/html; charset=utf-8')
          .send(pages.error({ code: limitedError, description, requestId: request.id }));
      } else reply.send({ error: limitedError, error_description: description });
      return true;
    }
  };

  function report(request: FastifyRequest, problem: Problem): void {
    const { client_id: clientId } = request.query as Record<string, unknown>;
    reportLimited(traces, clients, {
      ...{ name: 'authorize', requestId: request.id, address: request.ip, clientId, problem },
      remedy: `It counts the authorization requests, sign-ins and sign-outs that begin at one address. ${addressRemedy}`,
      keys: () => [],
    });
  }
}
