/** GET /api: who the token speaks for, and where it can go from here. */

import type { FastifyInstance } from 'fastify';
import type { Guard, Principal } from '../grants/principal.ts';

export interface RootLink {
  name: string;
  href: string;
  /** The link is shown to a token that has one of these. */
  scopes: readonly string[];
}

/** What is left of a quota, by its name. */
export type QuotasLeft = Record<string, { limit: number; left: number }>;

/**
 * @param subjectOf whom the token's client knows its user as
 * @param quotasOf what the token may still make; null where it makes nothing that is counted
 */
export function registerRoot(
  api: FastifyInstance,
  guard: Guard,
  subjectOf: (principal: Principal) => Promise<string | null>,
  links: readonly RootLink[],
  quotasOf: (principal: Principal) => Promise<QuotasLeft | null>,
): void {
  api.get('/api', async (request) => {
    const principal = await guard(request);
    const { clientId, scopes } = principal;
    const subject = await subjectOf(principal);
    const quotas = await quotasOf(principal);
    const usable = links.filter((link) => link.scopes.some((scope) => scopes.has(scope)));
    return {
      account: subject === null ? null : { id: subject },
      client: { id: clientId },
      scopes: [...scopes].sort(),
      ...(quotas === null ? {} : { quotas }),
      _links: {
        self: { href: '/api' },
        ...Object.fromEntries(usable.map(({ name, href }) => [name, { href }])),
      },
    };
  });
}
