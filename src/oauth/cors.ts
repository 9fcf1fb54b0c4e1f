/**
 * Cross-origin requests (Fetch standard, CORS protocol): endpoints that use no cookies are open to pages of any origin,
 * without credentials. oidc-provider handles its own endpoints. This file handles registration and everything below
 * `/.well-known`, including paths that do not exist: clients probe several paths and must be able to read a 404.
 */
import type { FastifyInstance } from 'fastify';
import { registrationPath } from './registration/registration.ts';

const exposedHeaders = 'Request-Id, Retry-After, WWW-Authenticate';
/** `Access-Control-Max-Age` of preflight responses, in seconds. */
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
