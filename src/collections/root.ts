/** GET /api: who the token acts for, and links to what it can use. */

import type { FastifyInstance } from 'fastify';
import type { Guard, Principal } from '../grants/principal.ts';
import { rootOperation } from './root_operation.ts';

export interface RootLink {
  name: string;
  href: string;
  /** Tokens with one of these scopes get the link. */
  scopes: readonly string[];
}

/** Limit and remaining amount of each quota. */
export type QuotasLeft = Record<string, { limit: number; left: number }>;

/**
 * @param subjectOf returns the subject identifier that the client knows the user by
 * @param quotasOf returns the quotas that apply to the token; null if none do
 */
export function registerRoot(
  api: FastifyInstance,
  guard: Guard,
  subjectOf: (principal: Principal) => Promise<string | null>,
  links: readonly RootLink[],
  quotasOf: (principal: Principal) => Promise<QuotasLeft | null>,
): void {
  api.get('/api', { config: { operation: rootOperation } }, async (request) => {
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
