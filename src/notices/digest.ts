/**
 * Collects notices to mails: the first notice of a kind waits for a minute for others, and after a mail the next ones of that
 * kind wait until an hour has passed. Owns the table `notices`, which triggers of 0020_mail.sql and `add_notice` of 0029_bounded_notices.sql write too. Also deletes rows of
 * `failing_warnings` when deliveries succeed again.
 *
 *   collected → part of a mail → (read again when the mail is sent) told | no longer so
 */

import { sql } from 'kysely';
import { deleteBatches } from '../database/batches.ts';
import type { Database } from '../database/database.ts';
import { queueMail } from '../mail/outbox.ts';
import { isNoticeKind, type NoticeKind } from './kinds.ts';

/** Seconds that the first notice waits for others. */
export const collectingSeconds = 60;
/** Minimum seconds between two mails of a kind to an account. */
const mailPauseSeconds = 3_600;
/** Notices that were not mailed for this long, in seconds, are no longer news. */
const newsSeconds = 86_400;
/** Maximum mails of one call. */
const mailsMax = 500;

/**
 * Finds subscriptions that have recovered after a warning. Recording a success does not look for warnings, so that
 * deliveries cost nothing more.
 */
export async function noticeRecoveries(db: Database): Promise<void> {
  await sql`
    with recovered as (
      delete from failing_warnings where lane in (
        select w.lane from failing_warnings w
        join lane_progress p on p.lane = w.lane join subscriptions s on s.lane = w.lane
        where s.state = 'active' and p.failing_since is null for update of w skip locked)
      returning lane)
    select add_notice('recovered', s.owner, s.account_id, s.client_id, s.id, '{}')
    from recovered join subscriptions s on s.lane = recovered.lane`.execute(db);
}

/**
 * Queues a mail for each account and kind whose notices have waited long enough. A digest that fails keeps none of the others back.
 * @throws AggregateError with what failed
 */
export async function collectNotices(db: Database, waitSeconds = collectingSeconds): Promise<void> {
  const isOld = sql`mail_id is null and at < now() - ${newsSeconds} * interval '1 second'`;
  await deleteBatches(db, 'notices', isOld);
  const { rows } = await sql<{ account_id: string; kind: string }>`
    -- The oldest notice of each account and kind is one look-up in the index, however many there are.
    with recursive waiting as (
      (select account_id, kind, at from notices where mail_id is null order by account_id, kind, at limit 1)
      union all
      select next.* from waiting w cross join lateral (
        select account_id, kind, at from notices
        where mail_id is null and (account_id, kind) > (w.account_id, w.kind)
        order by account_id, kind, at limit 1
      ) as next
    )
    select w.account_id, w.kind from waiting w
    where w.at <= now() - ${waitSeconds} * interval '1 second' and not exists (
      select from mails m
      where m.account_id = w.account_id and m.kind = w.kind
        and m.created_at > now() - ${mailPauseSeconds} * interval '1 second')
    order by w.at limit ${mailsMax}`.execute(db);
  const errors: unknown[] = [];
  for (const { account_id: accountId, kind } of rows) {
    await queueDigest(db, accountId, kind).catch((error: unknown) => errors.push(error));
  }
  if (errors.length > 0) throw new AggregateError(errors, `${errors.length} digests of notices failed`);
}

async function queueDigest(db: Database, accountId: string, kind: string): Promise<void> {
  await db.transaction().execute(async (tx) => {
    // Another node may have collected them, and the account may be deleted, since they were read. The mails of others do not wait for an
    // account that is being deleted.
    const { rows } = await sql`
      select from notices n join accounts a on a.id = n.account_id
      where n.account_id = ${accountId} and n.kind = ${kind} and n.mail_id is null
      limit 1 for update of n skip locked for key share of a skip locked`.execute(tx);
    if (rows.length === 0) return;
    const mailId = await queueMail(tx, { to: { accountId }, kind, content: null });
    await sql`
      update notices set mail_id = ${mailId} where id = any(array(
        select id from notices where account_id = ${accountId} and kind = ${kind} and mail_id is null
        for update skip locked))`.execute(tx);
  });
}

export interface Notice {
  kind: NoticeKind;
  at: Date;
  details: { reason?: string; failing_since?: string; disables_at?: string };
  /** Null for a subscription of the account itself. */
  app: { id: string; name: string } | null;
  /** Null if the notice is about the app itself. */
  subscription: { id: string; url: string | null; description: string } | null;
}

/**
 * Reads the notices of a mail that are still so: the account still wants them and is still a member of the app, and the
 * subscription still has that state. The newest of each subscription or app, newest first.
 */
export async function readNotices(db: Database, mailId: string): Promise<Notice[]> {
  const { rows } = await sql<{
    kind: string;
    at: Date;
    details: Notice['details'];
    client_id: string | null;
    client_name: string | null;
    subscription_id: string | null;
    url: string | null;
    description: string | null;
  }>`
    select distinct on (n.client_id, n.subscription_id)
      n.kind, n.at, n.details, n.client_id, c.name as client_name, n.subscription_id, s.url, s.description
    from notices n
    join accounts a on a.id = n.account_id and a.disabled_at is null
    left join app_members m on m.client_id = n.client_id and m.account_id = n.account_id
    left join clients c on c.id = n.client_id
    left join subscriptions s on s.id = n.subscription_id and s.state <> 'ended'
    left join lane_progress p on p.lane = s.lane
    where n.mail_id = ${mailId}
      and not exists (select from declined_notices d where d.account_id = n.account_id and d.kind = n.kind)
      and (n.client_id is null or (m.account_id is not null and c.disabled_at is null))
      and (n.subscription_id is null or s.id is not null)
      -- A subscription of the user, and not one that has another owner.
      and (n.client_id is not null or (s.owner = 'user' and s.account_id = n.account_id))
      and case
        when n.kind in ('failing', 'disabling') then
          s.state = 'active' and p.failing_since = (n.details ->> 'failing_since')::timestamptz
        when n.kind = 'disabled' then s.state = 'disabled'
        when n.kind = 'recovered' then s.state = 'active' and p.failing_since is null
        when n.kind = 'app_suspended' then c.suspended_at is not null
        else true end
    order by n.client_id, n.subscription_id, n.at desc, n.id desc`.execute(db);
  return rows
    .filter((row) => isNoticeKind(row.kind))
    .map((row) => ({
      kind: row.kind as NoticeKind,
      at: row.at,
      details: row.details,
      app: row.client_id === null ? null : { id: row.client_id, name: row.client_name ?? '' },
      subscription:
        row.subscription_id === null
          ? null
          : { id: row.subscription_id, url: row.url, description: row.description ?? '' },
    }))
    .sort((one, other) => other.at.getTime() - one.at.getTime());
}
