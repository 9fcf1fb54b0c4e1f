/** GET /api: who the token speaks for, and where it can go from here. */

import type { FastifyInstance } from 'fastify';
import type { Guard } from '../grants/principal.ts';

export interface RootLink {
  name: string;
  href: string;
  /** The link is shown to a token that has one of these. */
  scopes: readonly string[];
}

export function registerRoot(api: FastifyInstance, guard: Guard, links: readonly RootLink[]): void {
  api.get('/api', async (request) => {
    const { accountId, clientId, scopes } = await guard(request);
    const usable = links.filter((link) => link.scopes.some((scope) => scopes.has(scope)));
    return {
      account: accountId === null ? null : { id: accountId },
      client: { id: clientId },
      scopes: [...scopes].sort(),
      _links: {
        self: { href: '/api' },
        ...Object.fromEntries(usable.map(({ name, href }) => [name, { href }])),
      },
    };
  });
}
