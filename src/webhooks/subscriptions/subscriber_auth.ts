/**
 * How deliveries authenticate to the subscriber, besides their signature: by a password, a header, an access token of the
 * subscriber's authorization server (RFC 6749 section 4.4), or the deployment's client certificate. Secrets are sealed and never
 * shown again. Owns the columns `auth` and `auth_secret` of `subscriptions`.
 */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Transaction } from '../../database/database.ts';
import { ErrorList } from '../../http/problem.ts';
import { reservedForSubscribers } from './delivery_headers.ts';
import { checkSubscriberUrl } from './subscriber_url.ts';

export const authTypes = ['basic', 'header', 'oauth2', 'mtls'] as const;

export type SubscriberAuth =
  | { readonly type: 'basic'; readonly username: string; readonly password: string }
  | { readonly type: 'header'; readonly name: string; readonly value: string }
  | ClientCredentials
  | { readonly type: 'mtls' };

/** The deployment's credentials at the subscriber's authorization server. */
export interface ClientCredentials {
  readonly type: 'oauth2';
  readonly token_url: string;
  readonly client_id: string;
  readonly client_secret: string;
  readonly scope?: string;
}

/** As it is shown: without its secret. */
export type ShownAuth = Readonly<Record<string, string>> & { readonly type: SubscriberAuth['type'] };

/** As a request gives it: the schema has checked the form of each member, but not which of them belong together. */
export type GivenAuth = Readonly<Partial<Record<string, string>>> & { readonly type: SubscriberAuth['type'] };

/** What decides which header authenticates. */
type NamedAuth = { readonly type: SubscriberAuth['type']; readonly name?: string | undefined };

/** The members of each type, in the order in which they are shown. A question mark marks one that may be absent. */
const membersOf: Readonly<Record<SubscriberAuth['type'], readonly string[]>> = {
  basic: ['username', 'password'],
  header: ['name', 'value'],
  oauth2: ['token_url', 'client_id', 'client_secret', 'scope?'],
  mtls: [],
};

const secretMembers = new Set(['password', 'value', 'client_secret']);

export interface AuthRules {
  /** Whether `http` and loopback are allowed. */
  allowInsecure: boolean;
  /** Private hosts that the operator listed. */
  allow: readonly string[];
  /** The deployment's own header names. */
  taken: readonly string[];
  /** Whether the deployment has a client certificate. */
  hasCertificate: boolean;
}

/** Adds an error for each member that is missing, out of place or refused. */
export function checkAuth(auth: GivenAuth, rules: AuthRules, errors: ErrorList): void {
  const { type } = auth;
  const members = membersOf[type];
  for (const member of members) {
    if (!member.endsWith('?') && auth[member] === undefined)
      errors.add(['auth', member], `is required with the type ${type}`, 'auth-refused');
  }
  for (const member of Object.keys(auth)) {
    const isKnown = member === 'type' || members.includes(member) || members.includes(`${member}?`);
    if (!isKnown) errors.add(['auth', member], `does not belong to the type ${type}`, 'auth-refused');
  }
  if (type === 'mtls' && !rules.hasCertificate)
    errors.add(
      ['auth', 'type'],
      'needs a client certificate, which this deployment does not have',
      'auth-refused',
    );
  const { name, username, token_url: tokenUrl } = auth;
  if (type === 'header' && name !== undefined) {
    const isTaken = rules.taken.some((taken) => taken.toLowerCase() === name.toLowerCase());
    if (isTaken || reservedForSubscribers.test(name))
      errors.add(['auth', 'name'], 'is a reserved header name', 'header-refused');
  }
  // RFC 7617 section 2: the first colon ends the user name.
  if (type === 'basic' && username?.includes(':'))
    errors.add(['auth', 'username'], 'must not contain a colon', 'auth-refused');
  if (type === 'oauth2' && tokenUrl !== undefined) {
    const { error } = checkSubscriberUrl(tokenUrl, rules.allowInsecure, rules.allow);
    if (error !== undefined) errors.add(['auth', 'token_url'], error.message, error.code);
  }
}

/** The header that it adds to each request; undefined for none. */
function authHeaderName(auth: NamedAuth | null | undefined): string | undefined {
  if (auth == null || auth.type === 'mtls') return undefined;
  return auth.type === 'header' ? auth.name : 'authorization';
}

/** Adds an error if a static header has the name of the header that authenticates. */
export function checkHeaderIsFree(
  auth: NamedAuth | null | undefined,
  headerNames: readonly string[],
  errors: ErrorList,
): void {
  const name = authHeaderName(auth)?.toLowerCase();
  const same = headerNames.find((each) => each.toLowerCase() === name);
  if (same !== undefined) errors.add(['headers', same], 'is the header that `auth` sets', 'header-refused');
}

/** @param auth has passed the checks */
function shownAuth(auth: GivenAuth): ShownAuth {
  const entries = Object.entries(auth).filter(([member]) => !secretMembers.has(member));
  return Object.fromEntries(entries) as ShownAuth;
}

/** The values of the columns. @param auth has passed the checks */
export function storedAuth(auth: GivenAuth | null, id: string, sealer: Sealer) {
  if (auth === null) return { shown: null, sealed: null };
  return {
    shown: JSON.stringify(shownAuth(auth)),
    sealed: sealer.seal(JSON.stringify(auth), `${id} auth`),
  };
}

/** @throws Error if the sealed value cannot be opened */
export function openAuth(
  row: { id: string; auth_secret: Buffer | null },
  sealer: Sealer,
): SubscriberAuth | null {
  if (row.auth_secret === null) return null;
  return JSON.parse(sealer.open(row.auth_secret, `${row.id} auth`).toString()) as SubscriberAuth;
}

/**
 * Changes it for a subscription that the caller has locked, after its static headers. It is replaced as a whole. A stored secret is not
 * sent to a new origin unless the owner gives it again.
 * @param patch undefined to keep what is stored; has passed the checks
 * @param isMoved whether the subscription's URL moves to another origin
 * @throws Problem 422
 */
export async function patchAuth(
  tx: Transaction,
  id: string,
  patch: GivenAuth | null | undefined,
  isMoved: boolean,
  sealer: Sealer,
): Promise<void> {
  const { rows } = await sql<{ auth: ShownAuth | null; header_names: string[] }>`
    select auth, header_names from subscriptions where id = ${id}`.execute(tx);
  const [current] = rows;
  if (current === undefined) return;
  const errors = new ErrorList();
  if (patch === undefined && isMoved && authHeaderName(current.auth) !== undefined) {
    const message = 'must be given again, or removed with null, because the URL moves to another origin';
    errors.add(['auth'], message, 'auth-required-again');
  }
  checkHeaderIsFree(patch === undefined ? current.auth : patch, current.header_names, errors);
  errors.raise();
  if (patch === undefined) return;
  const { shown, sealed } = storedAuth(patch, id, sealer);
  await sql`update subscriptions set auth = ${shown}::jsonb, auth_secret = ${sealed}::bytea where id = ${id}`.execute(
    tx,
  );
}
