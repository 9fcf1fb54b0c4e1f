/**
 * State of one protocol request: rows that were already read, so that they are not queried again (a code is read together
 * with its grant and account), and decisions that are not written yet.
 */

import { AsyncLocalStorage } from 'node:async_hooks';
import { Provider } from 'oidc-provider';
import type { Account } from '../../accounts/account.ts';

export interface StoredGrant {
  id: string;
  accountId: string;
  clientId: string;
  details: GrantDetails;
  /** How often the grant has been narrowed. */
  revision: number;
  createdAt: Date;
}

/** A sign-in of this request: a session may only be stored for it while the account's epoch is the same. */
export interface VerifiedSignIn {
  accountId: string;
  signInEpoch: number;
}

/** A grant that is not written yet. */
export interface PendingGrant extends StoredGrant {
  /** Whether the user consented on a page in this request. Otherwise an earlier consent covers the grant. */
  isConsent: boolean;
  /** The `updatedAt` of the client in this request, which is the version that the user consented to. */
  clientVersion: Date;
  /** The login session of the request. The grant may only be stored while it exists. */
  sessionUid: string;
  /** Whether the grant ends with the session. */
  endsWithSession: boolean;
}

/** oidc-provider's representation of granted scopes and claims. */
export interface GrantDetails {
  openid?: { scope?: string; claims?: string[] };
  resources?: Record<string, string>;
  rejected?: Pick<GrantDetails, 'openid' | 'resources'>;
}

export interface RequestState {
  grants: Map<string, StoredGrant>;
  accounts: Map<string, Account>;
  /** The uid of the login session that the request came with. */
  sessionUid?: string;
  signIn?: VerifiedSignIn;
  /** Written together with the code that is issued for it. */
  pendingGrant?: PendingGrant;
  /** Consumes the code or refresh token of the request; not run yet (deferred_consumption.ts). */
  deferredConsumption?: () => Promise<void>;
  /** Digest of a code to be consumed by the statement that stores its refresh token. */
  pendingCode?: Buffer;
  /** Digest of a refresh token to be consumed by the statement that stores its successor. */
  pendingRefreshToken?: Buffer;
}

const states = new WeakMap<object, RequestState>();

/** The state of the current request, if any has been created. */
export function existingRequestState(): RequestState | undefined {
  const ctx = Provider.ctx;
  return ctx && states.get(ctx);
}

const signInsOfPages = new AsyncLocalStorage<VerifiedSignIn>();

/** Runs the storing of a session for a sign-in outside of a protocol request. */
export function withSignIn<T>(signIn: VerifiedSignIn, work: () => Promise<T>): Promise<T> {
  return signInsOfPages.run(signIn, work);
}

/** The state of the current request. Outside of a request it has at most a sign-in and is not retained. */
export function requestState(): RequestState {
  const ctx = Provider.ctx;
  if (ctx === undefined) {
    const signIn = signInsOfPages.getStore();
    return { grants: new Map(), accounts: new Map(), ...(signIn && { signIn }) };
  }
  let state = states.get(ctx);
  if (state === undefined) {
    state = { grants: new Map(), accounts: new Map() };
    states.set(ctx, state);
  }
  return state;
}
