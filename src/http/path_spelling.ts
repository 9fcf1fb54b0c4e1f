/**
 * A path has one spelling. The router decodes `/%6detrics` to `/metrics`, and a proxy whose rules compare paths as they were
 * sent would let it pass. So the fixed parts of a path count as sent: encoded ones are 404.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { notFoundDetail } from './errors.ts';
import { Problem } from './problem.ts';

export function refuseEncodedPaths(app: FastifyInstance): void {
  app.addHook('onRequest', (request, _reply, done) => {
    if (isAsRegistered(request)) done();
    else done(new Problem(404, notFoundDetail));
  });
}

function isAsRegistered({ url, routeOptions }: FastifyRequest): boolean {
  const [path = ''] = url.split(/[?#]/, 1);
  if (routeOptions.url === undefined || !path.includes('%')) return true;
  const parts = path.split('/');
  return routeOptions.url.split('/').every((part, at) => /[:*]/.test(part) || part === parts[at]);
}
