/**
 * How many requests an address may begin in a minute: each authorization request, pushed request (RFC 9126 section 2.3)
 * and device request leaves a row, and asks for nothing that a stranger lacks.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../http/problem.ts';
import { countAddress, type RateLimiter } from '../http/rate_limit.ts';
import type { EnginePages } from './engine_options.ts';

/** What begins something. */
const limitedPaths = new Set(['/oauth/authorize', '/oauth/par', '/oauth/device']);

const code = 'temporarily_unavailable';
const description = 'too many requests, try again later';

/** @returns whether the request was one too many, and was answered */
export type RefuseTooMany = (request: FastifyRequest, reply: FastifyReply, path: string) => boolean;

export function createRequestLimit(limiter: RateLimiter, pages: EnginePages): RefuseTooMany {
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
