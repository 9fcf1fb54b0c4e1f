/**
 * Protected resource metadata (RFC 9728): tells a client that received a 401 which authorization server issues tokens
 * for this API, and with which scopes.
 */

import type { FastifyInstance } from 'fastify';
import type { ScopeCatalogue } from '../grants/scopes.ts';

/** `max-age` of the document, in seconds. */
const maxAgeSeconds = 300;

/** @param name display name of the resource (`resource_name`) */
export function registerProtectedResource(
  app: FastifyInstance,
  baseUrl: string,
  scopes: ScopeCatalogue,
  name: string,
): void {
  const document = {
    resource: baseUrl,
    authorization_servers: [baseUrl],
    jwks_uri: `${baseUrl}/oauth/jwks`,
    // RFC 9728 section 2: the scopes of authorization requests. Scopes that only machine clients get are left out.
    scopes_supported: [...scopes.values()].filter(({ isForUsers }) => isForUsers).map(({ name }) => name),
    bearer_methods_supported: ['header'],
    resource_name: name,
    resource_documentation: `${baseUrl}/docs`,
  };
  app.get('/.well-known/oauth-protected-resource', async (_request, reply) => {
    return reply.header('cache-control', `public, max-age=${maxAgeSeconds}`).send(document);
  });
}
