/**
 * Authorization requests by POST (RFC 6749 section 3.1, OpenID Connect Core section 3.1.2.1). They are redirected to the
 * same request by GET, because browsers do not send `SameSite=Lax` cookies with a POST from another site.
 */

import { stringify } from 'node:querystring';
import formBody from '@fastify/formbody';
import type { FastifyInstance } from 'fastify';

/** Maximum size of the form in bytes, so that it fits into a URL. */
const formBytesMax = 8_192;

export function registerAuthorizeForm(app: FastifyInstance): void {
  void app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    await scope.register(formBody);
    scope.post('/oauth/authorize', { bodyLimit: formBytesMax }, async (request, reply) => {
      const query = stringify(request.body as Record<string, string | string[]>);
      return reply.header('cache-control', 'no-store').redirect(`/oauth/authorize?${query}`, 303);
    });
  });
}
