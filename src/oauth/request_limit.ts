/**
 * Limits how many authorization, pushed authorization (RFC 9126 section 2.3) and device requests one address may start
 * per minute: each stores a row and requires no credentials.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../http/problem.ts';
import { countAddress, type RateLimiter } from '../http/rate_limit.ts';
import type { ProviderPages } from './provider_options.ts';

/** Endpoints that start a flow. */
const limitedPaths = new Set(['/oauth/authorize', '/oauth/par', '/oauth/device']);

const code = 'temporarily_unavailable';
const description = 'too many requests, try again later';

/** @returns true if the request exceeded the limit and the response has been sent */
export type RejectIfLimited = (request: FastifyRequest, reply: FastifyReply, path: string) => boolean;

export function createRequestLimit(limiter: RateLimiter, pages: ProviderPages): RejectIfLimited {
  return (request, reply, path) => {
    if (!limitedPaths.has(path)) return false;
    try {
      countAddress(limiter, 'begin ', request.ip);
      return false;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      reply.code(error.status).headers(error.headers).header('cache-control', 'no-store');
      if (path === '/oauth/authorize') {
        reply
          .type('text/html; charset=utf-8')
          .send(pages.error({ code, description, requestId: request.id }));
      } else reply.send({ error: code, error_description: description });
      return true;
    }
  };
}
