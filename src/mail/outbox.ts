/**
 * The outbox of mails. Owns the table `mails`.
 *
 *   waiting → in flight → sent | waiting again after a growing delay → given up
 *                       → dropped (nobody may get it any more)
 */

import { type RawBuilder, sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { textArray, uuidArray } from '../database/arrays.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { MailContent } from './content.ts';

/** Delay in seconds after each failed attempt: about a day in total. The mail is given up after the last one. */
export const retryDelaysSeconds = [60, 300, 900, 3_600, 10_800, 21_600, 43_200] as const;
/** How long a claim lasts in seconds, after which another node may claim the mail. Longer than an attempt. */
const attemptSecondsMax = 300;
/** How long a mail may wait in seconds, also if the SMTP server could not be reached for all of that time. */
const expirySeconds = 172_800;
const errorCharactersMax = 500;

export interface NewMail {
  /** An account gets the mail at the address that it has when the mail is sent. */
  to: { accountId: string } | { address: string };
  /** Lower-case letters and underscores. Counts for the limit per address. */
  kind: string;
  /** Null if the composer of the kind writes the mail when it is sent (mailer.ts). */
  content: MailContent | null;
}

/**
 * Queues a mail in the transaction of its cause. It is sent after the commit, at least once.
 * @returns its id
 */
export async function queueMail(tx: Transaction, { to, kind, content }: NewMail): Promise<string> {
  const id = newId();
  const accountId = 'accountId' in to ? to.accountId : null;
  const address = 'address' in to ? to.address : null;
  await sql`
    insert into mails (id, kind, account_id, address, content)
    values (${id}, ${kind}, ${accountId}, ${address}, ${content === null ? null : JSON.stringify(content)}::json)`.execute(
    tx,
  );
  return id;
}

/** A mail that is due, and who it would be sent to now. */
export interface DueMail {
  id: string;
  /** The address in lower case, or the account if it has none. */
  recipient: string;
  /** The part of the address after the `@`; empty without an address. */
  domain: string;
  /** Whether this is the first attempt, and the address has accepted another mail in the last days. */
  isProven: boolean;
}

export interface DueQuery {
  /** The address at which an account may get mail, or null. */
  addressSql: (accountId: RawBuilder<unknown>) => RawBuilder<string | null>;
  /** Kinds whose mails are sent after all others. */
  lastKinds: readonly string[];
  max: number;
}

/**
 * Reads due mails without claiming them, in the order in which they should be sent: those of other kinds before those of
 * `lastKinds`. Then domains take turns, and within a domain its recipients. First attempts go before retries.
 */
export async function readDueMails(
  db: Database,
  { addressSql, lastKinds, max }: DueQuery,
): Promise<DueMail[]> {
  const { rows } = await sql<DueMail>`
    with due as materialized (
      select id, due_at, last_error is not null as is_retry, kind = any(${textArray(lastKinds)}::text[]) as is_last,
        account_id, coalesce(address, ${addressSql(sql.ref('mails.account_id'))}) as address
      from mails
      where sent_at is null and ended_at is null and due_at <= now()
    ), by_recipient as (
      select *, row_number() over (partition by recipient order by is_last, is_retry, due_at, id) as of_recipient
      from due, lateral (
        select lower(coalesce(address, account_id::text)) collate "C" as recipient,
          lower(coalesce(split_part(address, '@', -1), '')) collate "C" as domain) as names
    ), by_domain as (
      select *, row_number() over (
        partition by domain order by is_last, of_recipient, is_retry, due_at, id) as of_domain
      from by_recipient
    )
    select id, recipient, domain,
      not is_retry and exists (select from mails where sent_to = first.address and sent_at is not null) as "isProven"
    from (select * from by_domain order by is_last, of_domain, is_retry, due_at, id limit ${max}) as first
    order by is_last, of_domain, is_retry, due_at, id`.execute(db);
  return rows;
}

export interface ClaimedMail {
  id: string;
  kind: string;
  accountId: string | null;
  address: string | null;
  content: MailContent | null;
  /** Number of attempts, including the current one. */
  attempts: number;
  /** Whether it has waited for so long that it is no longer news. */
  isExpired: boolean;
}

/** Claims a mail if it is still due. No other node gets it for the duration of the claim. */
export async function claimMail(db: Database, id: string): Promise<ClaimedMail | undefined> {
  const { rows } = await sql<ClaimedMail>`
    update mails set attempts = attempts + 1, due_at = now() + ${attemptSecondsMax} * interval '1 second'
    where id = ${id} and sent_at is null and ended_at is null and due_at <= now()
    returning id, kind, account_id as "accountId", address, content, attempts,
      created_at < now() - ${expirySeconds} * interval '1 second' as "isExpired"`.execute(db);
  return rows[0];
}

/** Lets mails that are due, and that nobody has claimed, wait. */
export async function delayDueMails(db: Database, mails: readonly DueMail[], seconds: number): Promise<void> {
  await sql`
    update mails set due_at = now() + ${seconds} * interval '1 second'
    where id = any(${uuidArray(mails.map(({ id }) => id))}::uuid[]) and sent_at is null and ended_at is null and due_at <= now()`.execute(
    db,
  );
}

export async function recordSent(db: Database, mail: ClaimedMail, address: string): Promise<void> {
  await sql`
    update mails set sent_at = now(), sent_to = ${address}, content = null, last_error = null
    where id = ${mail.id} and sent_at is null and ended_at is null`.execute(db);
}

/** Ends a mail that is not sent. Its content is erased, because it may contain links that sign in. */
export async function recordEnd(db: Database, mail: ClaimedMail, reason: string): Promise<void> {
  await sql`
    update mails set ended_at = now(), content = null, last_error = ${reason.slice(0, errorCharactersMax)}
    where id = ${mail.id} and attempts = ${mail.attempts} and sent_at is null and ended_at is null`.execute(
    db,
  );
}

/**
 * Records a failed attempt, unless another node has claimed the mail since.
 * @returns whether the mail was given up
 */
export async function recordFailure(db: Database, mail: ClaimedMail, error: string): Promise<boolean> {
  const delay = retryDelaysSeconds[mail.attempts - 1];
  if (delay === undefined) {
    await recordEnd(db, mail, error);
    return true;
  }
  await sql`
    update mails set due_at = now() + ${delay} * interval '1 second', last_error = ${error.slice(0, errorCharactersMax)}
    where id = ${mail.id} and attempts = ${mail.attempts} and sent_at is null and ended_at is null`.execute(
    db,
  );
  return false;
}

/** Returns a claimed mail to the queue without an attempt. */
export async function postpone(db: Database, mail: ClaimedMail, seconds: number): Promise<void> {
  await sql`
    update mails set attempts = attempts - 1, due_at = now() + ${seconds} * interval '1 second'
    where id = ${mail.id} and attempts = ${mail.attempts} and sent_at is null and ended_at is null`.execute(
    db,
  );
}

/** Mails of the kind that the address got in the last hour. */
export async function countRecent(db: Database, address: string, kind: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from mails
    where sent_to = ${address} and kind = ${kind} and sent_at > now() - interval '1 hour'`.execute(db);
  return rows[0]?.count ?? 0;
}

/** Mails that wait, up to a maximum. */
export async function countWaiting(db: Database, max: number): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from (
      select from mails where sent_at is null and ended_at is null limit ${max}) waiting`.execute(db);
  return rows[0]?.count ?? 0;
}
