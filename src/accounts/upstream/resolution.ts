/**
 * Resolves a verified identity to an account. A new identity is connected to an account in one of three ways:
 *
 *   - A trusted provider reports a verified email address, and an account has the same verified address and no other
 *     identity of that provider.
 *   - The user signs in to an existing account.
 *   - The first sign-in creates an account, if registration is open.
 *
 * An address that the provider has not verified, or that comes from an untrusted provider, is neither used nor stored: an
 * account with an address owns that address.
 */

import { sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { connectIdentity, lockIdentity, useIdentity, type VerifiedIdentity } from './identity.ts';
import { finishUpstreamLogin } from './upstream_login.ts';

/** Whether a first sign-in can create an account. */
type Registration = 'open' | 'off';

export type Resolution =
  | { outcome: 'signed-in'; accountId: string; how: 'known' | 'connected' | 'created' }
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
    if (owner !== undefined) return { outcome: 'signed-in', accountId: owner.accountId, how: 'known' };
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

/** Connects the identity to an account that the user has proved to control, and signs in to it. */
export function connectLogin(
  db: Database,
  { browserSecret, identity }: PendingLogin,
  accountId: string,
): Promise<Resolution> {
  return inOneTransaction(db, browserSecret, identity, (tx) =>
    connectTo(tx, accountId, identity, 'connected'),
  );
}

/** Rolls the transaction back when a concurrent request has finished the sign-in. */
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
  return outcome === 'connected' ? { outcome: 'signed-in', accountId, how } : { outcome };
}

/** Finds the local account with an address. External accounts are excluded: addresses never link them. */
async function findAddressOwner(
  db: Database | Transaction,
  email: string,
  issuer: string,
): Promise<{ id: string; isDisabled: boolean; mayConnect: boolean } | undefined> {
  const { rows } = await sql<{ id: string; is_disabled: boolean; may_connect: boolean }>`
    select a.id, a.disabled_at is not null as is_disabled,
      -- With another identity of the same issuer, the provider has reassigned the address.
      a.email_verified is true and not exists (
        select from upstream_identities i where i.account_id = a.id and i.issuer = ${issuer}) as may_connect
    from accounts a
    where a.email = ${email} and a.external_id is null
    for no key update of a`.execute(db);
  const row = rows[0];
  return row && { id: row.id, isDisabled: row.is_disabled, mayConnect: row.may_connect };
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
