/**
 * Authorization requests by POST (RFC 6749 section 3.1, OpenID Connect Core section 3.1.2.1). They are redirected to the
 * same request by GET, because browsers do not send `SameSite=Lax` cookies with a POST from another site.
 */

import { stringify } from 'node:querystring';
import formBody from '@fastify/formbody';
import type { FastifyInstance } from 'fastify';
import { Problem } from '../http/problem.ts';
import { locationLengthMax } from './redirects.ts';

/** Maximum size of the form in bytes, so that it fits into a URL. */
const formBytesMax = 8_192;

export function registerAuthorizeForm(app: FastifyInstance): void {
  void app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    await scope.register(formBody);
    scope.post('/oauth/authorize', { bodyLimit: formBytesMax }, async (request, reply) => {
      const url = `/oauth/authorize?${stringify(request.body as Record<string, string | string[]>)}`;
      // Bytes that are no UTF-8 become nine times as long.
      if (url.length > locationLengthMax) {
        throw new Problem(400, 'The parameters of the request are too long for a redirect.');
      }
      return reply.header('cache-control', 'no-store').redirect(url, 303);
    });
  });
}
