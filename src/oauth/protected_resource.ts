/**
 * Protected resource metadata (RFC 9728): where a client that meets a bare 401 learns which authorization server
 * to ask, and for what.
 */

import type { FastifyInstance } from 'fastify';
import type { ScopeCatalogue } from '../grants/scopes.ts';

/** Seconds that the document may be kept. */
const maxAgeSeconds = 300;

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
    // RFC 9728 section 2: those of authorization requests. What is the operator's machines' alone is not asked of users.
    scopes_supported: [...scopes.values()].filter(({ isForUsers }) => isForUsers).map(({ name }) => name),
    bearer_methods_supported: ['header'],
    resource_name: name,
    resource_documentation: `${baseUrl}/docs`,
  };
  app.get('/.well-known/oauth-protected-resource', async (_request, reply) => {
    return reply.header('cache-control', `public, max-age=${maxAgeSeconds}`).send(document);
  });
}
