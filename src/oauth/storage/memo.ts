/**
 * What one protocol request already learned from the database, so that it is not asked again: a code comes with
 * its grant and its account in one query. And what the request has decided but not yet written.
 */

import { Provider } from 'oidc-provider';
import type { Account } from '../../accounts/account.ts';

export interface StoredGrant {
  id: string;
  accountId: string;
  clientId: string;
  details: GrantDetails;
  /** How often it has been narrowed. */
  revision: number;
  createdAt: Date;
}

/** One that is not written yet. */
export interface PendingGrant extends StoredGrant {
  /** Whether the user has just confirmed it on a page; otherwise it follows from what was confirmed before. */
  isConsent: boolean;
}

/** The engine's own form of what was granted. */
export interface GrantDetails {
  openid?: { scope?: string; claims?: string[] };
  resources?: Record<string, string>;
  rejected?: Pick<GrantDetails, 'openid' | 'resources'>;
}

export interface Memo {
  grants: Map<string, StoredGrant>;
  accounts: Map<string, Account>;
  /** The login session that the request came with, by its uid. */
  sessionUid?: string;
  /** Confirmed by the user in this request; written together with the code that it leads to. */
  pendingGrant?: PendingGrant;
  /** What uses up the code or refresh token of the request, not yet run (settlement.ts). */
  postponed?: () => Promise<void>;
  /** Digest of a code that will be used up by the statement that stores its refresh token. */
  pendingCode?: Buffer;
  /** Digest of a refresh token that will be used up by the statement that stores its successor. */
  pendingRefreshToken?: Buffer;
}

const memos = new WeakMap<object, Memo>();

/** The same, where one has been begun. */
export function knownMemo(): Memo | undefined {
  const ctx = Provider.ctx;
  return ctx && memos.get(ctx);
}

/** The memo of the request under way; outside of one, an empty one that nobody keeps. */
export function currentMemo(): Memo {
  const ctx = Provider.ctx;
  if (ctx === undefined) return { grants: new Map(), accounts: new Map() };
  let memo = memos.get(ctx);
  if (memo === undefined) {
    memo = { grants: new Map(), accounts: new Map() };
    memos.set(ctx, memo);
  }
  return memo;
}
