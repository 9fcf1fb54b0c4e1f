/**
 * Resolves a verified identity to an account. A new identity is connected to an account in one of three ways:
 *
 *   - A trusted provider reports a verified email address, and an account has the same verified address, no other identity
 *     of that provider, and none that was disconnected.
 *   - The user signs in to an existing account.
 *   - The first sign-in creates an account, if registration is open.
 *
 * An address is neither used nor stored if the provider is untrusted or has not verified it, because an account with an address
 * owns that address.
 */

import { sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { signInEpochOf } from '../account.ts';
import {
  connectIdentity,
  isIssuerNew,
  lockIdentity,
  useIdentity,
  type VerifiedIdentity,
} from './identity.ts';
import { finishUpstreamLogin } from './upstream_login.ts';

/** Whether a first sign-in can create an account. */
type Registration = 'open' | 'off';

export type Resolution =
  | { outcome: 'signed-in'; accountId: string; signInEpoch: number; how: 'known' | 'connected' | 'created' }
  /** The user chooses between an existing account and a new one. */
  | { outcome: 'unknown'; mayCreate: boolean; takenEmail: string | null }
  | { outcome: 'disabled' }
  | { outcome: 'too-many' }
  | { outcome: 'of-another-account' }
  /** The sign-in is finished or expired. */
  | { outcome: 'over' };

interface PendingLogin {
  browserSecret: string;
  identity: VerifiedIdentity;
}

/**
 * Signs in without user interaction if possible.
 * @param isCreationConfirmed whether the user chose to create an account
 */
export function resolveLogin(
  db: Database,
  { browserSecret, identity }: PendingLogin,
  registration: Registration,
  isCreationConfirmed: boolean,
): Promise<Resolution> {
  return inOneTransaction(db, browserSecret, identity, async (tx) => {
    const owner = await useIdentity(tx, identity);
    if (owner?.isDisabled === true) return { outcome: 'disabled' };
    if (owner !== undefined) {
      const { accountId, signInEpoch } = owner;
      return { outcome: 'signed-in', accountId, signInEpoch, how: 'known' };
    }
    const { trustedEmail } = identity;
    if (trustedEmail !== null) {
      const local = await findAddressOwner(tx, trustedEmail, identity.issuer);
      if (local?.isDisabled === true) return { outcome: 'disabled' };
      if (local?.mayConnect === true) return connectTo(tx, local.id, identity, 'connected');
      if (local !== undefined) return { outcome: 'unknown', mayCreate: false, takenEmail: trustedEmail };
    }
    const mayCreate = registration === 'open';
    if (!mayCreate || (trustedEmail === null && !isCreationConfirmed)) {
      return { outcome: 'unknown', mayCreate, takenEmail: null };
    }
    const accountId = await insertAccount(tx, identity);
    // A concurrent transaction took the address.
    if (accountId === undefined) return { outcome: 'unknown', mayCreate: false, takenEmail: trustedEmail };
    return connectTo(tx, accountId, identity, 'created');
  });
}

/** Describes the choices of a user whose identity is not connected. Changes nothing. */
export async function describeUnknown(
  db: Database,
  { trustedEmail, issuer }: VerifiedIdentity,
  registration: Registration,
): Promise<Resolution> {
  const local = trustedEmail === null ? undefined : await findAddressOwner(db, trustedEmail, issuer);
  const takenEmail = local === undefined ? null : trustedEmail;
  return { outcome: 'unknown', mayCreate: registration === 'open' && takenEmail === null, takenEmail };
}

/**
 * Connects the identity to an account that the user has proved to control, and signs in to it.
 * @param signInEpoch the account's epoch when the user proved it
 */
export function connectLogin(
  db: Database,
  { browserSecret, identity }: PendingLogin,
  accountId: string,
  signInEpoch: number,
): Promise<Resolution> {
  return inOneTransaction(db, browserSecret, identity, async (tx) => {
    const resolution = await connectTo(tx, accountId, identity, 'connected');
    // The account is locked now. Its sessions have been ended since: the password may be an old one.
    if (resolution.outcome === 'signed-in' && resolution.signInEpoch !== signInEpoch) throw new OverError();
    return resolution;
  });
}

/** Rolls the transaction back when the sign-in is no longer valid. */
class OverError extends Error {}

/** Finishes the sign-in in the transaction that signs the user in. */
async function inOneTransaction(
  db: Database,
  browserSecret: string,
  identity: VerifiedIdentity,
  work: (tx: Transaction) => Promise<Resolution>,
): Promise<Resolution> {
  try {
    return await db.transaction().execute(async (tx) => {
      await lockIdentity(tx, identity);
      const resolution = await work(tx);
      if (resolution.outcome === 'signed-in' && !(await finishUpstreamLogin(tx, browserSecret)))
        throw new OverError();
      return resolution;
    });
  } catch (error) {
    if (error instanceof OverError) return { outcome: 'over' };
    throw error;
  }
}

async function connectTo(
  tx: Transaction,
  accountId: string,
  identity: VerifiedIdentity,
  how: 'connected' | 'created',
): Promise<Resolution> {
  const outcome = await connectIdentity(tx, accountId, identity);
  if (outcome !== 'connected') return { outcome };
  const signInEpoch = (await signInEpochOf(tx, accountId)) as number;
  return { outcome: 'signed-in', accountId, signInEpoch, how };
}

/**
 * Finds the local account with an address, and locks it. External accounts are excluded: addresses never link them. The address
 * does not connect an issuer that has another identity of the account, because the provider has reassigned the address, nor
 * one whose identity was disconnected.
 */
async function findAddressOwner(
  db: Database | Transaction,
  email: string,
  issuer: string,
): Promise<{ id: string; isDisabled: boolean; mayConnect: boolean } | undefined> {
  const { rows } = await sql<{ id: string; is_disabled: boolean; is_verified: boolean }>`
    select id, disabled_at is not null as is_disabled, email_verified is true as is_verified
    from accounts
    where email = ${email} and external_id is null
    for no key update`.execute(db);
  const row = rows[0];
  if (row === undefined) return undefined;
  const mayConnect = row.is_verified && (await isIssuerNew(db, row.id, issuer));
  return { id: row.id, isDisabled: row.is_disabled, mayConnect };
}

/** @returns undefined if another account has the address */
async function insertAccount(
  tx: Transaction,
  { trustedEmail, name }: VerifiedIdentity,
): Promise<string | undefined> {
  const displayName = name || (trustedEmail?.slice(0, trustedEmail.indexOf('@')) ?? '');
  const { rows } = await sql<{ id: string }>`
    insert into accounts (id, email, email_verified, name)
    values (${newId()}, ${trustedEmail}, ${trustedEmail === null ? null : true}, ${displayName})
    on conflict (email) where external_id is null do nothing
    returning id`.execute(tx);
  return rows[0]?.id;
}
