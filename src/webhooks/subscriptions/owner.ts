/** The owner of a subscription. */

import type { Created } from '../../clients/client.ts';
import { consoleClientId } from '../../clients/own_clients.ts';
import type { Principal } from '../../grants/principal.ts';

/** Decides which events a subscription gets and who can see it. */
export type Owner =
  | ({ kind: 'grant'; grantId: string; accountId: string; clientId: string } & AppMember)
  | ({ kind: 'user'; accountId: string /** The console's. */; grantId?: string | null } & AppMember)
  | ({ kind: 'client'; clientId: string } & Created);

export interface AppMember {
  /** The account's token also covers the own subscriptions of apps that the account is a member of. */
  memberId?: string | null;
}

/**
 * Whose subscriptions a token gives access to. The console's token speaks for the user. With `read:apps` or `write:apps`, a token also covers the own subscriptions of the
 * user's apps.
 */
export function ownerOf(principal: Principal, action: 'read' | 'write'): Owner {
  const { accountId, creatorId, clientId, grantId, scopes } = principal;
  const memberId = scopes.has(`${action}:apps`) ? accountId : null;
  if (accountId !== null && clientId === consoleClientId)
    return { kind: 'user', accountId, memberId, grantId };
  return accountId !== null && grantId !== null
    ? { kind: 'grant', grantId, accountId, clientId, memberId }
    : { kind: 'client', clientId, creatorId };
}
