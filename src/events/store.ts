/** Stores published events: the event, its row in the outbox and its chosen id, in one transaction. */

import { createHash } from 'node:crypto';
import { sql } from 'kysely';
import { ensureExternalAccounts, findExternalAccounts } from '../accounts/external_account.ts';
import { textArray, uuidArray } from '../database/arrays.ts';
import { type Database, inTransaction, type Transaction } from '../database/database.ts';
import { bodyProblem, Problem } from '../http/problem.ts';
import { errorsMax, type PublishedEvent } from './batch.ts';

/** An event and its place in the database. */
export interface StoredEvent extends PublishedEvent {
  day: string;
  position: number;
  createdAt: Date;
  /** The application's own id of the account. */
  accountExternalId: string | null;
}

/**
 * Stores a list in one transaction, as a whole or not at all.
 * @param chosen indexes of the events with a chosen id
 * @returns the new events, without those that were stored before
 * @throws Problem 422 if an account does not exist, or if a chosen id belongs to an event with other content
 */
export async function storeEvents(
  db: Database | Transaction,
  events: readonly PublishedEvent[],
  chosen: readonly number[],
): Promise<StoredEvent[]> {
  const isKnown = await findOwners(db, events);
  // One statement is a transaction by itself.
  if (chosen.length === 0 && isKnown) return insertList(db, events);
  return inTransaction(db, async (tx) => {
    // Accounts before ids: every transaction locks in this order.
    if (!isKnown) await createOwners(tx, events);
    refuseUnknown(events, await unknownAccounts(tx, events));
    const { taken, reused } = await takeIds(tx, events, chosen);
    if (reused.size > 0) throw reusedId(`/${Math.min(...reused)}`);
    const fresh = events.filter((_event, index) => !taken.has(index));
    return fresh.length === 0 ? [] : insertList(tx, fresh);
  });
}

/**
 * Fills in the account ids of events that name their account by its external id.
 * @returns whether all of these accounts exist
 */
export async function findOwners(
  db: Database | Transaction,
  events: readonly PublishedEvent[],
): Promise<boolean> {
  return nameOwners(events, await findExternalAccounts(db, externalIdsOf(events)));
}

/** Does the same and creates missing accounts, so that publishing does not depend on who has signed in before. */
export async function createOwners(tx: Transaction, events: readonly PublishedEvent[]): Promise<void> {
  const { ids } = await ensureExternalAccounts(tx, externalIdsOf(events));
  nameOwners(events, ids);
}

function externalIdsOf(events: readonly PublishedEvent[]): string[] {
  return events.flatMap(({ externalId }) => (externalId === undefined ? [] : [externalId]));
}

function nameOwners(events: readonly PublishedEvent[], ids: ReadonlyMap<string, string>): boolean {
  let isKnown = true;
  for (const event of events) {
    if (event.externalId === undefined) continue;
    event.accountId = ids.get(event.externalId) ?? '';
    if (event.accountId === '') isKnown = false;
  }
  return isKnown;
}

async function insertList(
  db: Database | Transaction,
  events: readonly PublishedEvent[],
): Promise<StoredEvent[]> {
  const stored = await insertEvents(db, events);
  if (stored !== undefined) return stored;
  refuseUnknown(events, await unknownAccounts(db, events));
  // The missing accounts exist by now.
  return insertList(db, events);
}

/** Rejects events of accounts that do not exist, because no subscription could receive them. */
function refuseUnknown(events: readonly PublishedEvent[], unknown: ReadonlySet<string>): void {
  if (unknown.size === 0) return;
  const pointers = [...events.entries()]
    .filter(([, { accountId }]) => unknown.has(accountId))
    .map(([index]) => `/${index}`);
  throw unknownAccount(pointers.slice(0, errorsMax));
}

/** @param pointers JSON pointers of the events in the body */
export function unknownAccount(pointers: readonly string[]): Problem {
  return bodyProblem(
    pointers.map((pointer) => ({
      pointer: `${pointer}/account`,
      message: 'must be the id of an account',
      code: 'unknown-account',
    })),
  );
}

/** The account was deleted between two statements. */
export function accountDeleted(): Problem {
  return new Problem(409, 'The account is being deleted.', { code: 'account-deleted' });
}

/** @param pointer JSON pointer of the event in the body */
export function reusedId(pointer: string): Problem {
  const message = 'is already the id of another event';
  return bodyProblem([{ pointer: `${pointer}/id`, message, code: 'id-reused' }]);
}

/** @returns the ids among those of the events that belong to no account */
export async function unknownAccounts(
  db: Database | Transaction,
  events: readonly PublishedEvent[],
): Promise<ReadonlySet<string>> {
  const accounts = [...new Set(events.map(({ accountId }) => accountId))];
  const { rows } = await sql<{ id: string }>`
    select given.id from unnest(${accounts}::text[]) as given (id)
    where not exists (select from accounts where accounts.id = given.id::uuid offset 0)`.execute(db);
  return new Set(rows.map(({ id }) => id));
}

export interface TakenIds {
  /** Indexes of the events that are stored already. */
  taken: ReadonlySet<number>;
  /** Indexes of the events whose id belongs to an event with other content. */
  reused: ReadonlySet<number>;
}

/**
 * Reserves chosen ids. If several events have the same new id, the first one is new.
 * @param chosen indexes of the events with a chosen id
 */
export async function takeIds(
  tx: Transaction,
  events: readonly PublishedEvent[],
  chosen: readonly number[],
): Promise<TakenIds> {
  if (chosen.length === 0) return { taken: new Set(), reused: new Set() };
  const given = chosen.map((index) => {
    const event = events[index] as PublishedEvent;
    return { index, id: event.id, content: contentOf(event) };
  });
  const firsts = new Map<string, (typeof given)[number]>();
  for (const each of given) if (!firsts.has(each.id)) firsts.set(each.id, each);
  // Sorted, so that two batches with the same ids cannot deadlock.
  const ids = [...firsts.keys()].sort();
  const { rows: added } = await sql<{ id: string }>`
    insert into event_ids (id, content)
    select id, decode(content, 'hex')
    from unnest(${ids}::text[], ${ids.map((id) => firsts.get(id)?.content)}::text[]) as given (id, content)
    order by id
    on conflict (id) do nothing
    returning id`.execute(tx);
  const fresh = new Set(added.map(({ id }) => id));
  const stored = await contentsOf(
    tx,
    ids.filter((id) => !fresh.has(id)),
  );
  const taken = new Set<number>();
  const reused = new Set<number>();
  for (const { index, id, content } of given) {
    const first = firsts.get(id);
    if (content !== (stored.get(id) ?? first?.content)) reused.add(index);
    else if (!fresh.has(id) || index !== first?.index) taken.add(index);
  }
  return { taken, reused };
}

/** Reads the content digests of stored ids. */
async function contentsOf(tx: Transaction, ids: readonly string[]): Promise<Map<string, string>> {
  if (ids.length === 0) return new Map();
  const { rows } = await sql<{ id: string; content: string }>`
    select id, encode(content, 'hex') as content from event_ids where id = any(${ids}::text[])`.execute(tx);
  return new Map(rows.map(({ id, content }) => [id, content]));
}

function contentOf({ kind, accountId, body }: PublishedEvent): string {
  return createHash('sha256').update(`${kind}\n${accountId}\n`).update(body).digest('hex');
}

/** @returns undefined if an account does not exist; then nothing is written */
export async function insertEvents(
  db: Database | Transaction,
  events: readonly PublishedEvent[],
): Promise<StoredEvent[] | undefined> {
  const accounts = [...new Set(events.map(({ accountId }) => accountId))];
  // Takes the positions first, in the order of the events, so that the inserted rows need not be returned and sorted.
  const { rows } = await sql<{
    day: string;
    first: string;
    positions: string | null;
    created_at: Date;
    external_ids: string | null;
  }>`
    with known as materialized (
      select count(*) as count,
        jsonb_object_agg(given.id, account.external_id) filter (where account.external_id is not null) as external_ids
      from unnest(${uuidArray(accounts)}::uuid[]) as given (id)
      cross join lateral (select external_id from accounts where id = given.id offset 0) as account
    ),
    place as materialized (
      select event_day() as day, external_ids,
        array(select nextval('event_positions') from generate_series(1, ${events.length}::int)) as positions
      from known where count = ${accounts.length}::int
    ),
    added as (
      insert into events (day, position, id, account_id, kind, version, body, created_at, traceparent)
      select day, position, id, account_id, kind, version, body, statement_timestamp(), traceparent
      from (
        select place.day, unnest(place.positions) as position,
          unnest(${textArray(events.map(({ id }) => id))}::text[]) as id,
          unnest(${uuidArray(events.map(({ accountId }) => accountId))}::uuid[]) as account_id,
          unnest(${textArray(events.map(({ kind }) => kind))}::text[]) as kind,
          unnest(${textArray(events.map(({ version }) => version))}::text[]) as version,
          unnest(${textArray(events.map(({ body }) => body))}::text[]) as body,
          unnest(${textArray(events.map(({ traceparent }) => traceparent))}::text[]) as traceparent
        from place
      ) as given
    ),
    -- One row for each account, because accounts take turns.
    waiting as (
      insert into outbox (day, turn, positions)
      select day, account_id, array_agg(position order by position)
      from (
        select place.day, unnest(place.positions) as position,
          unnest(${uuidArray(events.map(({ accountId }) => accountId))}::uuid[]) as account_id
        from place
      ) as given
      group by day, account_id
    )
    select day::text, positions[1] as first, statement_timestamp() as created_at,
      -- Listed only if other transactions took positions in between.
      case when positions[cardinality(positions)] - positions[1] >= cardinality(positions)
        then array_to_string(positions, ',') end as positions,
      external_ids::text as external_ids
    from place`.execute(db);
  if (rows[0] === undefined) return undefined;
  const { day, first, positions, created_at: createdAt } = rows[0];
  const listed = positions?.split(',');
  const externalIds: Record<string, string> = JSON.parse(rows[0].external_ids ?? '{}');
  return events.map((event, index) => ({
    ...event,
    day,
    position: listed === undefined ? Number(first) + index : Number(listed[index]),
    createdAt,
    accountExternalId: externalIds[event.accountId] ?? null,
  }));
}
