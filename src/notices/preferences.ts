/** Which kinds of notices an account wants: all until it declines one. Owns the table `declined_notices`. */

import { sql } from 'kysely';
import type { Database, Transaction } from '../database/database.ts';
import { type NoticeKind, noticeKinds } from './kinds.ts';

export type NoticeChoices = Readonly<Record<NoticeKind, boolean>>;

export async function readChoices(db: Database | Transaction, accountId: string): Promise<NoticeChoices> {
  const { rows } = await sql<{ kind: string }>`
    select kind from declined_notices where account_id = ${accountId}`.execute(db);
  const declined = new Set(rows.map(({ kind }) => kind));
  return Object.fromEntries(noticeKinds.map((kind) => [kind, !declined.has(kind)])) as NoticeChoices;
}

/** Changes the kinds that are given and keeps the others. Does nothing if the account is deleted. */
export async function changeChoices(
  tx: Transaction,
  accountId: string,
  choices: Partial<NoticeChoices>,
): Promise<void> {
  const given = noticeKinds.filter((kind) => choices[kind] !== undefined);
  const declined = given.filter((kind) => choices[kind] === false);
  await sql`
    insert into declined_notices (account_id, kind)
    select a.id, kind from accounts a, unnest(${declined}::text[]) as kind where a.id = ${accountId}
    on conflict do nothing`.execute(tx);
  await sql`
    delete from declined_notices
    where account_id = ${accountId} and kind = any(${given.filter((kind) => choices[kind] === true)}::text[])`.execute(
    tx,
  );
}

/** Whether an account can get notices: it develops an app, has a subscription of its own, or has declined some. */
export async function concernsNotices(db: Database, accountId: string): Promise<boolean> {
  const { rows } = await sql`
    select where exists (select from app_members where account_id = ${accountId})
      or exists (select from subscriptions where account_id = ${accountId} and owner = 'user' and state <> 'ended')
      or exists (select from declined_notices where account_id = ${accountId})`.execute(db);
  return rows.length > 0;
}
