/** Limits the length of redirects, in whose parameters are those of requests: percent-encoding makes up to nine characters of a byte. */

import type { FastifyInstance } from 'fastify';
import { Problem } from './problem.ts';

/**
 * Characters of a redirect. Proxies have a limit for the headers of a response: behind the nginx of docs/operations.md, 32 KiB. nginx takes a longer
 * one for a failure of the node, and sends nobody there for ten seconds.
 */
export const locationLengthMax = 16_384;

/** Responds with 400 in place of longer redirects. Those of oidc-provider have the same limit (oauth/redirects.ts). */
export function limitRedirectLength(app: FastifyInstance): void {
  app.addHook('onSend', (_request, reply, _payload, done) => {
    if (String(reply.getHeader('location') ?? '').length <= locationLengthMax) {
      done();
      return;
    }
    reply.removeHeader('location');
    done(new Problem(400, 'The parameters of the request are too long for a redirect.'));
  });
}
