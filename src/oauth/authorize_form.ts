/**
 * The authorization request as a form (RFC 6749 section 3.1, OpenID Connect Core section 3.1.2.1): sent on as the
 * same request by GET, so that the browser brings its session along, which it keeps from another site's POST.
 */

import { stringify } from 'node:querystring';
import formBody from '@fastify/formbody';
import type { FastifyInstance } from 'fastify';

/** The largest form taken, in bytes: what fits into a URL. */
const formBytesMax = 8_192;

export function registerAuthorizeForm(app: FastifyInstance): void {
  void app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    await scope.register(formBody, { bodyLimit: formBytesMax });
    scope.post('/oauth/authorize', async (request, reply) => {
      const query = stringify(request.body as Record<string, string | string[]>);
      return reply.header('cache-control', 'no-store').redirect(`/oauth/authorize?${query}`, 303);
    });
  });
}
