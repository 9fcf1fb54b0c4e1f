/** The secrets of subscriptions: signing keys and their rotation, and everything else that requests contain and that is sealed. */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { Owner } from './owner.ts';
import { openHeaders, type StaticHeaders } from './static_headers.ts';
import { openAuth, type SubscriberAuth } from './subscriber_auth.ts';
import { ownedBy } from './subscription.ts';

export interface Secrets {
  secret: string;
  /** The previous secret, while it still signs. */
  previous: { secret: string; until: Date } | null;
}

export async function readSecrets(
  db: Database | Transaction,
  owner: Owner,
  id: string,
  sealer: Sealer,
): Promise<Secrets | undefined> {
  const { rows } = await sql<SecretRow>`
    select id, secret, previous_secret, previous_secret_until from subscriptions
    where id = ${id} and ${ownedBy(owner)}`.execute(db);
  return rows[0] && openSecrets(rows[0], sealer);
}

/** What the requests to a subscriber contain that is sealed. */
export interface SentValues {
  secret: string;
  headers: StaticHeaders;
  auth: SubscriberAuth | null;
}

/** @returns undefined if the subscription does not exist */
export async function readSentValues(
  db: Database,
  owner: Owner,
  id: string,
  sealer: Sealer,
): Promise<SentValues | undefined> {
  const { rows } = await sql<SecretRow & { headers: Buffer | null; auth_secret: Buffer | null }>`
    select id, secret, previous_secret, previous_secret_until, headers, auth_secret from subscriptions
    where id = ${id} and ${ownedBy(owner)}`.execute(db);
  const [row] = rows;
  if (row === undefined) return undefined;
  const { secret } = openSecrets(row, sealer);
  return { secret, headers: openHeaders(row, sealer), auth: openAuth(row, sealer) };
}

/**
 * Adds a new secret. The previous one keeps signing during the overlap.
 * @param overlapSeconds 0 drops the previous secret at once
 */
export async function rotateSecret(
  db: Database | Transaction,
  owner: Owner,
  id: string,
  secret: string,
  overlapSeconds: number,
  sealer: Sealer,
): Promise<Secrets | undefined> {
  const { rows } = await sql<SecretRow>`
    update subscriptions set
      previous_secret = case when ${overlapSeconds}::int > 0 then secret end,
      previous_secret_until = case when ${overlapSeconds}::int > 0 then now() + make_interval(secs => ${overlapSeconds}) end,
      secret = ${sealer.seal(secret, id)}, revision = revision + 1, updated_at = now()
    where id = ${id} and ${ownedBy(owner)}
    returning id, secret, previous_secret, previous_secret_until`.execute(db);
  return rows[0] && openSecrets(rows[0], sealer);
}

/**
 * Takes the secret that the subscriber chose. If it is a new one, the current one also signs during the overlap. Nodes read the subscription
 * again in both cases.
 */
export async function renewSecret(
  tx: Transaction,
  owner: Owner,
  id: string,
  secret: string,
  overlapSeconds: number,
  sealer: Sealer,
): Promise<void> {
  const current = await readSecrets(tx, owner, id, sealer);
  if (current === undefined) return;
  if (current.secret === secret)
    await sql`update subscriptions set updated_at = now() where id = ${id}`.execute(tx);
  else await rotateSecret(tx, owner, id, secret, overlapSeconds, sealer);
}

export interface SecretRow {
  id: string;
  secret: Buffer;
  previous_secret: Buffer | null;
  previous_secret_until: Date | null;
}

export function openSecrets(row: SecretRow, sealer: Sealer): Secrets {
  const until = row.previous_secret_until;
  const previous =
    row.previous_secret !== null && until !== null
      ? { secret: sealer.open(row.previous_secret, row.id).toString(), until }
      : null;
  return { secret: sealer.open(row.secret, row.id).toString(), previous };
}
