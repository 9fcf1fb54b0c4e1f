/**
 * Cross-origin requests (Fetch standard, CORS protocol): what has no cookies may be used by pages of any origin,
 * without credentials. The engine answers for its own endpoints; this answers for registration, and for everything
 * below `/.well-known`, also for what is not there: clients try several addresses and must be able to read a 404.
 */

import type { FastifyInstance } from 'fastify';
import { registrationPath } from './registration/registration.ts';

const exposedHeaders = 'Request-Id, Retry-After, WWW-Authenticate';
/** Seconds that the answer to a preflight may be kept. */
const maxAgeSeconds = 3_600;

export function registerCors(app: FastifyInstance): void {
  app.addHook('onRequest', (request, reply, done) => {
    const methods = openMethods(request.url);
    if (methods === undefined) return done();
    reply.header('access-control-allow-origin', '*').header('access-control-expose-headers', exposedHeaders);
    if (request.method !== 'OPTIONS') return done();
    const asked = request.headers['access-control-request-headers'];
    if (asked !== undefined) reply.header('access-control-allow-headers', asked);
    reply
      .code(204)
      .header('allow', methods)
      .header('access-control-allow-methods', methods)
      .header('access-control-max-age', String(maxAgeSeconds))
      .header('vary', 'Access-Control-Request-Headers')
      .send();
  });
}

function openMethods(url: string): string | undefined {
  if (url.startsWith('/.well-known/')) return 'GET, HEAD, OPTIONS';
  if (url === registrationPath) return 'POST, OPTIONS';
  if (url.startsWith(`${registrationPath}/`)) return 'GET, PUT, DELETE, OPTIONS';
  return undefined;
}
