/**
 * Limits the number of header fields of a request. Each takes memory beside its bytes: heads of thousands of fields that do not end took 64 KB each, so that 7,000
 * connections had all memory of a small node.
 */

import type { FastifyInstance } from 'fastify';
import { Problem } from './problem.ts';

/** Programs send some twenty fields, and proxies add some. Envoy has the same limit. */
const fieldsMax = 100;

export function limitHeadFields(app: FastifyInstance): void {
  // Node.js keeps so many and drops the others, among which may be any, such as a second `Host`.
  app.server.maxHeadersCount = fieldsMax + 1;
  app.addHook('onRequest', ({ raw }, _reply, done) => {
    if (raw.rawHeaders.length <= 2 * fieldsMax) {
      done();
      return;
    }
    const detail = `A request must have at most ${fieldsMax} header fields.`;
    done(new Problem(431, detail, { code: 'unreadable-request', headers: { connection: 'close' } }));
  });
}
