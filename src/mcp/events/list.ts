/** `events/list`: the kinds that a grant may have. */

import type { Principal } from '../../grants/principal.ts';
import { refusedParams } from './errors.ts';
import type { AgentKind } from './kinds.ts';

/** `push` is `events/stream`. */
const delivery = ['webhook', 'poll', 'push'];
const kindsPerPage = 100;

/** @throws RpcError InvalidParams for a cursor of another list */
export function listKinds(
  kinds: ReadonlyMap<string, AgentKind>,
  principal: Principal,
  cursor: unknown,
): Record<string, unknown> {
  const listed = [...kinds.values()].filter((kind) => mayHave(kind, principal));
  const start = readCursor(cursor, listed);
  const page = listed.slice(start, start + kindsPerPage);
  const last = page.at(-1);
  const hasMore = last !== undefined && start + kindsPerPage < listed.length;
  return {
    events: page.map(({ name, description, inputSchema, schema }) => {
      return { name, description, delivery, inputSchema, payloadSchema: schema };
    }),
    ...(hasMore ? { nextCursor: Buffer.from(last.name).toString('base64url') } : {}),
  };
}

/** Apps that act for themselves have no events: they have no grant that owns a subscription. */
function mayHave({ scope }: AgentKind, { grantId, scopes }: Principal): boolean {
  return grantId !== null && (scope === null || scopes.has(scope));
}

function readCursor(cursor: unknown, listed: readonly AgentKind[]): number {
  if (cursor === undefined || cursor === null) return 0;
  const name = typeof cursor === 'string' ? Buffer.from(cursor, 'base64url').toString() : '';
  const index = listed.findIndex((kind) => kind.name === name);
  if (index < 0) throw refusedParams('cursor', 'invalid');
  return index + 1;
}
