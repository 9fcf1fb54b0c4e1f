/**
 * The protected resources of this server, and their metadata (RFC 9728), which tells a client that received a 401 which
 * authorization server issues tokens for the resource, and with which scopes. The resource API is the base URL. The endpoint
 * for agents (src/mcp) is a resource of its own: tokens of one are refused by the other.
 */

import type { FastifyInstance } from 'fastify';

/** `max-age` of the document, in seconds. */
const maxAgeSeconds = 300;

/** The path of the endpoint for agents. */
export const mcpPath = '/mcp';

export interface ProtectedResource {
  /** Below the base URL: empty for the resource API. */
  readonly path: '' | typeof mcpPath;
  /** The scopes of authorization requests (RFC 9728 section 2). Scopes that only machine clients get are left out. */
  readonly scopes: readonly string[];
  /** Whether responses with status 401 name the scopes (RFC 6750 section 3), for clients that ask for no others. */
  readonly asksForScopes: boolean;
}

/** The URL of a resource, which is the audience of its tokens. */
export function resourceUrl(baseUrl: string, { path }: Pick<ProtectedResource, 'path'>): string {
  return baseUrl + path;
}

/** RFC 9728 section 3.1: the path of the resource follows the well-known path. */
export function resourceMetadataUrl(baseUrl: string, { path }: Pick<ProtectedResource, 'path'>): string {
  return `${baseUrl}/.well-known/oauth-protected-resource${path}`;
}

/** @param name display name of the resource (`resource_name`) */
export function registerProtectedResource(
  app: FastifyInstance,
  baseUrl: string,
  resource: ProtectedResource,
  name: string,
): void {
  const document = {
    resource: resourceUrl(baseUrl, resource),
    authorization_servers: [baseUrl],
    jwks_uri: `${baseUrl}/oauth/jwks`,
    scopes_supported: resource.scopes,
    bearer_methods_supported: ['header'],
    resource_name: name,
    resource_documentation: `${baseUrl}/docs`,
  };
  app.get(resourceMetadataUrl('', resource), async (_request, reply) => {
    return reply.header('cache-control', `public, max-age=${maxAgeSeconds}`).send(document);
  });
}
