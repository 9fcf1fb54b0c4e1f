/** Stores connection traces and reads them. Owns the table `connections`. */

import { type RawBuilder, sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { textArray } from '../database/arrays.ts';
import type { Database } from '../database/database.ts';
import { keptDays, keptFor } from '../database/retention.ts';
import { joinSteps, type KnownConnection } from './joining.ts';
import type { ConnectionOutcome, PendingStep, Step } from './step.ts';

/** Maximum numbers of traces: of one app, authenticated and others each, of all unregistered apps, and of the server. */
const tracesMax = { client: 500, unknown: 2_000, server: 100_000 };
/** Maximum steps of one connection. Further ones are dropped. */
const stepsMax = 40;
/** Maximum number of connections with one key that are considered when steps are joined, the latest. */
const candidatesMax = 10;
/** Bytes of the steps on a page, before its last connection: all clients of a node share its server thread. */
const pageBytesMax = 1_048_576;

export interface Connection {
  id: string;
  startedAt: Date;
  updatedAt: Date;
  clientId: string | null;
  accountId: string | null;
  grantId: string | null;
  outcome: ConnectionOutcome;
  steps: readonly Step[];
}

/**
 * Writes steps: each to its connection, in one statement. Each key has candidates of its own, so that an app with many connections
 * does not displace the connection of another one. An account that is being deleted, which can take long, is left out: the steps of all
 * others would wait for it.
 */
export async function writeSteps(db: Database, pending: readonly PendingStep[]): Promise<void> {
  const keys = [...new Set(pending.flatMap((step) => step.keys))];
  const { rows } = await sql<KnownConnection>`
    with latest as (
      select distinct c.id
      from unnest(${textArray(keys)}::text[]) as wanted (key)
      cross join lateral (
        select id from connections
        where keys @> array[wanted.key] and started_at > now() - interval '1 day'
        order by updated_at desc limit ${candidatesMax}::int
      ) as c
    )
    select id, client_id as "clientId", outcome, keys,
      array(select concat_ws(' ', step->>'name', step->>'outcome', step->>'error') from jsonb_array_elements(steps) as step)
        as "stepsTaken"
    from connections join latest using (id)
    order by updated_at desc`.execute(db);
  const joined = joinSteps(rows, pending, newId);
  if (joined.length === 0) return;
  // Ordered by id, so that nodes which write the same rows do not deadlock.
  const changed = joined.toSorted((a, b) => (a.id < b.id ? -1 : 1));
  await sql`
    insert into connections
      (id, started_at, updated_at, client_id, is_known, account_id, grant_id, outcome, keys, request_ids, source, steps)
    select c.id, to_timestamp(c.started_at), to_timestamp(c.updated_at), c.client_id, c.is_known,
      (select a.id from accounts a where a.id = c.account_id for key share skip locked), c.grant_id, c.outcome, c.keys, c.request_ids, c.source, c.steps
    from jsonb_to_recordset(${JSON.stringify(changed.map(toRow))}::jsonb) as c (
      id uuid, started_at float8, updated_at float8, client_id text, is_known boolean, account_id uuid, grant_id uuid, outcome text,
      keys text[], request_ids text[], source text, steps jsonb)
    order by c.id
    on conflict (id) do update set
      updated_at = excluded.updated_at,
      client_id = coalesce(connections.client_id, excluded.client_id),
      is_known = connections.is_known or excluded.is_known,
      account_id = coalesce(excluded.account_id, connections.account_id),
      grant_id = coalesce(excluded.grant_id, connections.grant_id),
      outcome = excluded.outcome,
      keys = array(select distinct unnest(connections.keys || excluded.keys) limit ${stepsMax}),
      request_ids = array(select distinct unnest(connections.request_ids || excluded.request_ids) limit ${stepsMax}),
      steps = connections.steps || excluded.steps
    where jsonb_array_length(connections.steps) < ${stepsMax}`.execute(db);
}

function toRow(change: ReturnType<typeof joinSteps>[number]): object {
  const { id, clientId, isKnown, accountId, grantId, outcome, keys, requestIds, source, steps } = change;
  return {
    id,
    started_at: Date.parse(steps[0]?.at ?? '') / 1_000,
    updated_at: Date.parse(steps.at(-1)?.at ?? '') / 1_000,
    client_id: clientId,
    is_known: isKnown,
    account_id: accountId,
    grant_id: grantId,
    outcome,
    keys,
    request_ids: requestIds,
    source,
    steps,
  };
}

export interface ConnectionFilter {
  clientId?: string | null | undefined;
  requestId?: string | null | undefined;
  accountId?: string | null | undefined;
  outcome?: ConnectionOutcome | null | undefined;
}

/** Reads connections, the newest first. */
export async function readConnections(
  db: Database,
  filter: ConnectionFilter,
  limit: number,
): Promise<Connection[]> {
  const { rows } = await sql<Connection>`${selectConnections(filter, limit, null)}`.execute(db);
  return rows.map(withOrderedSteps);
}

/**
 * Reads a page of connections, the newest first.
 * @param after the cursor of the last connection of the previous page (`connectionCursor`)
 * @returns a page, which is short if its traces are long, and the cursor that the next page follows; null if there is none
 */
export async function readFittingConnections(
  db: Database,
  filter: ConnectionFilter,
  limit: number,
  after: string | null,
): Promise<{ found: Connection[]; next: string | null }> {
  const { rows } = await sql<Connection & { hasMore: boolean }>`
    select * from (
      select *, lead(id) over newest is not null as "hasMore",
        coalesce(sum(octet_length(steps::text)) over (newest rows between unbounded preceding and 1 preceding), 0) as bytes
      from (${selectConnections(filter, limit + 1, after)}) as found
      window newest as (order by "startedAt" desc, id desc)
    ) as measured
    where bytes < ${pageBytesMax}::int
    order by "startedAt" desc, id desc limit ${limit}`.execute(db);
  const found = rows.map(({ id, startedAt, updatedAt, clientId, accountId, grantId, outcome, steps }) =>
    withOrderedSteps({ id, startedAt, updatedAt, clientId, accountId, grantId, outcome, steps }),
  );
  const last = rows.at(-1);
  return { found, next: last?.hasMore ? connectionCursor(last) : null };
}

function selectConnections(
  { clientId = null, requestId = null, accountId = null, outcome = null }: ConnectionFilter,
  limit: number,
  after: string | null,
): RawBuilder<unknown> {
  const [at = null, id = null] = after?.split(' ') ?? [];
  return sql`
    select id, started_at as "startedAt", updated_at as "updatedAt", client_id as "clientId", account_id as "accountId",
      grant_id as "grantId", outcome, steps
    from connections
    where started_at > now() - ${keptFor(keptDays.connections)}
      and (${clientId}::text is null or client_id = ${clientId})
      and (${requestId}::text is null or request_ids @> array[${requestId}::text])
      and (${accountId}::uuid is null or account_id = ${accountId})
      and (${outcome}::text is null or outcome = ${outcome})
      and (${at}::float8 is null or (started_at, id) < (to_timestamp(${at}::float8 / 1000), ${id}::uuid))
    order by started_at desc, id desc
    limit ${limit}`;
}

function withOrderedSteps(connection: Connection): Connection {
  return { ...connection, steps: connection.steps.toSorted((a, b) => (a.at < b.at ? -1 : 1)) };
}

/** A connection as its user sees it. */
export interface Attempt {
  clientId: string;
  startedAt: Date;
  outcome: ConnectionOutcome;
  /** The last refused step; null if there is none. */
  refused: Pick<Step, 'name' | 'error' | 'request'> | null;
}

/**
 * Reads the newest connections of an account that are more than callbacks of a connected app. A connection can have tens of long steps, of
 * which no more is read than its user sees.
 * @param limit of connections that are looked at
 */
export async function readAttempts(db: Database, accountId: string, limit: number): Promise<Attempt[]> {
  const { rows } = await sql<Attempt>`
    select client_id as "clientId", started_at as "startedAt", outcome, (
      select jsonb_build_object('name', step -> 'name', 'error', step -> 'error', 'request', step -> 'request')
      from jsonb_array_elements(steps) with ordinality as given (step, number)
      where step ->> 'outcome' = 'refused' order by step ->> 'at' desc, number desc limit 1) as refused
    from (
      select * from connections
      where account_id = ${accountId} and started_at > now() - ${keptFor(keptDays.connections)}
      order by started_at desc limit ${limit}
    ) as newest
    where client_id is not null
      and exists (select from jsonb_array_elements(steps) as step where step ->> 'name' <> 'delivery')
    order by started_at desc`.execute(db);
  return rows;
}

/** The cursor of a connection: its time in milliseconds, and its id. */
export function connectionCursor({ id, startedAt }: Connection): string {
  return `${startedAt.getTime()} ${id}`;
}

export const cursorForm = /^\d{1,15} [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/**
 * Deletes what is over a limit. Traces of a user who signed in, or of an app that got a token, are counted apart, so that requests with the
 * public id of an app remove none of them. Of too many, those of the addresses that sent most leave first, so that a flood removes only
 * itself.
 */
export async function pruneConnections(db: Database): Promise<void> {
  await sql`
    with named as (
      select id, started_at, source, case when is_known then client_id end as owner,
        account_id is not null or grant_id is not null or outcome = 'connected' as is_authenticated
      from connections
    ), by_sender as (
      select *, row_number() over (partition by owner, is_authenticated, source order by started_at desc) as of_sender,
        row_number() over (partition by is_authenticated, source order by started_at desc) as of_source
      from named
    ), by_owner as (
      select *, row_number() over (partition by owner, is_authenticated order by of_sender, started_at desc) as of_owner
      from by_sender
    ), by_server as (
      select id, owner, of_owner,
        row_number() over (order by not is_authenticated, of_source, started_at desc) as of_server
      from by_owner
    )
    delete from connections where id in (
      select id from by_server
      where of_owner > case when owner is null then ${tracesMax.unknown}::int else ${tracesMax.client}::int end
        or of_server > ${tracesMax.server})`.execute(db);
}
