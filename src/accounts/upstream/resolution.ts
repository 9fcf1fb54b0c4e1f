/**
 * Which account a verified identity signs in to. An identity is connected to an account
 *
 *   - that has an address which this server knows to be verified, where a trusted provider reports the same address as
 *     verified, and no other identity of that provider is connected;
 *   - by its user, who signs in to both;
 *   - that its first sign-in creates, where registration is open.
 *
 * An address from a provider that is not trusted, or that it has not verified, connects nothing and is not stored: an
 * account of this server with an address owns that address.
 */

import { sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { connectIdentity, lockIdentity, useIdentity, type VerifiedIdentity } from './identity.ts';
import { finishUpstreamLogin } from './upstream_login.ts';

/** Who may create an account. */
type Registration = 'open' | 'off';

export type Resolution =
  | { outcome: 'signed-in'; accountId: string; how: 'known' | 'connected' | 'created' }
  /** The user chooses: an account that they have, or a new one. */
  | { outcome: 'unknown'; mayCreate: boolean; takenEmail: string | null }
  | { outcome: 'disabled' }
  | { outcome: 'too-many' }
  | { outcome: 'of-another-account' }
  /** Finished before, or too late. */
  | { outcome: 'over' };

interface Waiting {
  browserSecret: string;
  identity: VerifiedIdentity;
}

/**
 * Signs in without a question where that is possible.
 * @param isWanted whether the user asked for a new account
 */
export function resolveLogin(
  db: Database,
  { browserSecret, identity }: Waiting,
  registration: Registration,
  isWanted: boolean,
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
    if (!mayCreate || (trustedEmail === null && !isWanted)) {
      return { outcome: 'unknown', mayCreate, takenEmail: null };
    }
    const accountId = await createAccountOf(tx, identity);
    // Somebody else got the address at this moment.
    if (accountId === undefined) return { outcome: 'unknown', mayCreate: false, takenEmail: trustedEmail };
    return connectTo(tx, accountId, identity, 'created');
  });
}

/** What the user is asked where nobody has the identity; changes nothing. */
export async function describeUnknown(
  db: Database,
  { trustedEmail, issuer }: VerifiedIdentity,
  registration: Registration,
): Promise<Resolution> {
  const local = trustedEmail === null ? undefined : await findAddressOwner(db, trustedEmail, issuer);
  const takenEmail = local === undefined ? null : trustedEmail;
  return { outcome: 'unknown', mayCreate: registration === 'open' && takenEmail === null, takenEmail };
}

/** Connects the identity to an account whose user has proved to be the same person, and signs in to it. */
export function connectLogin(
  db: Database,
  { browserSecret, identity }: Waiting,
  accountId: string,
): Promise<Resolution> {
  return inOneTransaction(db, browserSecret, identity, (tx) =>
    connectTo(tx, accountId, identity, 'connected'),
  );
}

/** Thrown to undo what was written: the sign-in was used up at the same moment. */
class OverError extends Error {}

/** The sign-in is used up by the transaction that signs in, or not at all. */
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

/**
 * Whose address it is here. Accounts of another application are not asked: their users sign in there, and nothing is
 * linked by their addresses.
 */
async function findAddressOwner(
  db: Database | Transaction,
  email: string,
  issuer: string,
): Promise<{ id: string; isDisabled: boolean; mayConnect: boolean } | undefined> {
  const { rows } = await sql<{ id: string; is_disabled: boolean; may_connect: boolean }>`
    select a.id, a.disabled_at is not null as is_disabled,
      -- Another identity of the same provider: the provider gave the address to somebody else.
      a.email_verified is true and not exists (
        select from upstream_identities i where i.account_id = a.id and i.issuer = ${issuer}) as may_connect
    from accounts a
    where a.email = ${email} and a.external_id is null
    for no key update of a`.execute(db);
  const row = rows[0];
  return row && { id: row.id, isDisabled: row.is_disabled, mayConnect: row.may_connect };
}

/** @returns undefined where the address is taken */
async function createAccountOf(
  tx: Transaction,
  { trustedEmail, name }: VerifiedIdentity,
): Promise<string | undefined> {
  const shown = name || (trustedEmail?.slice(0, trustedEmail.indexOf('@')) ?? '');
  const { rows } = await sql<{ id: string }>`
    insert into accounts (id, email, email_verified, name)
    values (${newId()}, ${trustedEmail}, ${trustedEmail === null ? null : true}, ${shown})
    on conflict (email) where external_id is null do nothing
    returning id`.execute(tx);
  return rows[0]?.id;
}
