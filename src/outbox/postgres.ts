/**
 * The outbox in PostgreSQL 13 or later. A sequence assigns positions at the insert. If a transaction commits before another one
 * appends, its events have lower positions and are visible first. Owns the tables `nuncio_outbox` and `nuncio_outbox_lease`; the
 * options `table` and `schema` set other names.
 */

import { accountOf, assertSameEvent, type EventRow, type NewEvent, toJson, toRow } from './event.ts';
import { checkName, quoteName, quoteText } from './identifier.ts';
import {
  countedMax,
  type Outbox,
  type OutboxStats,
  pageDefault,
  pageMax,
  type ReadLimits,
  type RejectedEvent,
  type RejectedEvents,
  type WaitingEvent,
} from './store.ts';

/** A `Pool`, `PoolClient` or `Client` of `pg`, or any object with this method. */
export interface PostgresConnection {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
}

export interface PostgresOutboxOptions {
  /**
   * The connection of the relay and of operators: a `Pool`, or a connection on which the application opens no transactions.
   * `append` uses the connection that you pass to it.
   */
  pool: PostgresConnection;
  /** Default: `nuncio_outbox`. Maximum length: 50 bytes. */
  table?: string | undefined;
  /** The schema of the table. Default: the first schema of the connection's search path. */
  schema?: string | undefined;
}

export interface PostgresOutbox extends Outbox {
  /**
   * Appends an event in the open transaction of the connection. The event commits with the change.
   * @returns the event's id
   * @throws TypeError when no server would accept the event
   */
  append(connection: PostgresConnection, event: NewEvent): Promise<string>;
  /** Appends events in the given order with one statement. @returns their ids */
  appendMany(connection: PostgresConnection, events: readonly NewEvent[]): Promise<string[]>;
}

/** Quoted table names. */
interface Tables {
  events: string;
  lease: string;
}

/** @throws TypeError when an option is missing or invalid */
export function postgresOutbox(options: PostgresOutboxOptions): PostgresOutbox {
  const { pool } = options;
  if (typeof pool?.query !== 'function') throw new TypeError('pool must have a query method');
  const name = checkName('table', options.table ?? 'nuncio_outbox');
  const schema = options.schema === undefined ? '' : `${quoteName(checkName('schema', options.schema))}.`;
  const tables = { events: schema + quoteName(name), lease: schema + quoteName(`${name}_lease`) };
  const statements = createStatements(tables, quoteName(`${name}_waiting`));
  const appendMany = (connection: PostgresConnection, events: readonly NewEvent[]) =>
    appendEvents(connection, tables, events);
  return {
    sql: `${statements.join(';\n\n')};\n`,
    async setUp() {
      await pool.query(setUpStatement(tables, statements), []);
    },
    async append(connection, event) {
      const [id] = await appendMany(connection, [event]);
      return id as string;
    },
    appendMany,
    rejected: rejectedEvents(pool, tables),
    stats: () => readStats(pool, tables),
    ...relaySide(pool, tables),
  };
}

function createStatements({ events, lease }: Tables, index: string): string[] {
  return [
    `create table ${events} (
  position bigint generated always as identity primary key,
  id text not null unique,
  kind text not null,
  account_id text,
  external_id text,
  body json not null,
  created_at timestamptz not null default now(),
  rejected_at timestamptz,
  reason text,
  check (num_nonnulls(account_id, external_id) = 1)
)`,
    `create index ${index} on ${events} (position) where rejected_at is null`,
    `create table ${lease} (
  only_row boolean primary key default true check (only_row),
  holder text not null,
  until timestamptz not null
)`,
  ];
}

/**
 * A single statement, so that a pool runs it as one transaction. Of two concurrent calls, one waits for the other's commit and then
 * finds that the tables exist: by its check, or by an error about the table, its type or an index of the catalog.
 */
function setUpStatement({ events }: Tables, statements: readonly string[]): string {
  const block = `begin
  if to_regclass(${quoteText(events)}) is null then
    ${statements.map((statement) => `${statement};`).join('\n    ')}
  end if;
exception when unique_violation or duplicate_table or duplicate_object then
  null;
end`;
  return `do ${quoteText(block)}`;
}

async function appendEvents(
  connection: PostgresConnection,
  { events: table }: Tables,
  events: readonly NewEvent[],
): Promise<string[]> {
  const rows = events.map(toRow);
  let missing = rows;
  // Repeats only if the relay deletes an event with the same id between the two statements.
  while (missing.length > 0) {
    const added = await query<{ id: string }>(
      connection,
      `insert into ${table} (id, kind, account_id, external_id, body)
       select id, kind, account_id, external_id, body::json
       from rows from (json_to_recordset($1::json)
         as (id text, kind text, account_id text, external_id text, body text)) with ordinality
         as given (id, kind, account_id, external_id, body, place)
       order by place
       on conflict (id) do nothing
       returning id`,
      [JSON.stringify(missing)],
    );
    missing = await findMissing(connection, table, missing, new Set(added.map(({ id }) => id)));
  }
  return rows.map(({ id }) => id);
}

/**
 * Returns the rows that are neither inserted nor stored.
 * @throws Error when the outbox has a different event with the id of a row
 */
async function findMissing(
  connection: PostgresConnection,
  table: string,
  rows: readonly EventRow[],
  added: ReadonlySet<string>,
): Promise<EventRow[]> {
  if (added.size === rows.length) return [];
  const stored = await query<EventRow>(
    connection,
    `select id, kind, account_id, external_id, body::text from ${table}
     where id in (select json_array_elements_text($1::json))`,
    [JSON.stringify(rows.map(({ id }) => id))],
  );
  const byId = new Map(stored.map((row) => [row.id, row]));
  return rows.filter((row) => {
    const found = byId.get(row.id);
    if (found !== undefined) assertSameEvent(row, found);
    return found === undefined && !added.has(row.id);
  });
}

/**
 * False while the application has a writing transaction open on the connection. The relay then reads nothing, because it
 * would see uncommitted rows.
 */
const isOutsideTransaction = 'pg_current_xact_id_if_assigned() is null';

function relaySide(
  pool: PostgresConnection,
  { events, lease }: Tables,
): Omit<Outbox, 'sql' | 'setUp' | 'rejected' | 'stats'> {
  return {
    async hasWaiting() {
      const rows = await query(
        pool,
        `select 1 as found from ${events} where rejected_at is null and ${isOutsideTransaction} limit 1`,
      );
      return rows.length > 0;
    },
    async hold(holder, leaseMs) {
      // A lease that ends later than a new one is from before the clock was set back.
      const rows = await query(
        pool,
        `insert into ${lease} as held (holder, until)
         values ($1, clock_timestamp() + $2::float8 * interval '1 millisecond')
         on conflict (only_row) do update set holder = excluded.holder, until = excluded.until
         where held.holder = excluded.holder or held.until <= clock_timestamp()
           or held.until > clock_timestamp() + $2::float8 * interval '1 millisecond'
         returning holder`,
        [holder, leaseMs],
      );
      return rows.length > 0;
    },
    async release(holder) {
      await query(pool, `update ${lease} set holder = '', until = '-infinity' where holder = $1`, [holder]);
    },
    read: (limits) => readHead(pool, events, limits),
    async forget(positions) {
      await query(
        pool,
        `delete from ${events} where position in (select value::bigint from json_array_elements_text($1::json))`,
        [JSON.stringify(positions)],
      );
    },
    async reject(holder, rejections) {
      await query(
        pool,
        `update ${events} as e set rejected_at = now(), reason = given.reason
         from json_to_recordset($1::json) as given (position bigint, reason text)
         where e.position = given.position and exists (select from ${lease} where holder = $2)`,
        [JSON.stringify(rejections), holder],
      );
    },
  };
}

async function readHead(
  pool: PostgresConnection,
  events: string,
  limits: ReadLimits,
): Promise<WaitingEvent[]> {
  const rows = await query<EventRow & { place: string }>(
    pool,
    `select position::text as place, id, kind, account_id, external_id, body
     from (
       select *, sum(octet_length(body)) over (order by position) - octet_length(body) as bytes_before
       from (
         select position, id, kind, account_id, external_id, body::text as body from ${events}
         where rejected_at is null and ${isOutsideTransaction}
         order by position limit $1::int
       ) as head
     ) as sized
     where bytes_before < $2::bigint
     order by position`,
    [limits.events, limits.bytes],
  );
  return rows.map(({ place, id, kind, body, ...names }) => {
    return { position: place, id, kind, account: accountOf(names), body };
  });
}

function rejectedEvents(pool: PostgresConnection, { events }: Tables): RejectedEvents {
  const retry = async (condition: string, values: unknown[]): Promise<number> => {
    const rows = await query<{ count: string }>(
      pool,
      `with changed as (
         update ${events} set rejected_at = null, reason = null, body = coalesce($1::json, body)
         where rejected_at is not null ${condition} returning 1
       )
       select count(*)::text as count from changed`,
      values,
    );
    return Number(rows[0]?.count);
  };
  return {
    async list({ limit = pageDefault, after = '0' } = {}) {
      const rows = await query<RejectedRow>(
        pool,
        `select position::text as place, id, kind, account_id, external_id, body::text, reason,
           (extract(epoch from created_at) * 1000)::text as created_ms,
           (extract(epoch from rejected_at) * 1000)::text as rejected_ms
         from ${events} where rejected_at is not null and position > $1::bigint
         order by position limit $2::int`,
        [after, Math.min(limit, pageMax)],
      );
      return rows.map(toRejected);
    },
    async retry(id, corrected) {
      const body = corrected === undefined ? null : toJson(corrected.body);
      return (await retry('and id = $2', [body, id])) > 0;
    },
    retryAll: () => retry('', [null]),
    async discard(id) {
      const text = `delete from ${events} where id = $1 and rejected_at is not null returning id`;
      return (await query(pool, text, [id])).length > 0;
    },
  };
}

interface RejectedRow extends EventRow {
  place: string;
  reason: string;
  created_ms: string;
  rejected_ms: string;
}

function toRejected({
  place,
  id,
  kind,
  body,
  reason,
  created_ms,
  rejected_ms,
  ...names
}: RejectedRow): RejectedEvent {
  return {
    position: place,
    id,
    kind,
    account: accountOf(names),
    body: JSON.parse(body),
    reason,
    createdAt: new Date(Number(created_ms)),
    rejectedAt: new Date(Number(rejected_ms)),
  };
}

async function readStats(pool: PostgresConnection, { events }: Tables): Promise<OutboxStats> {
  const count = (condition: string) =>
    `(select count(*) from (select from ${events} where rejected_at is ${condition} limit ${countedMax}) as counted)::text`;
  const rows = await query<{ waiting: string; rejected: string; oldest_ms: string | null }>(
    pool,
    `select ${count('null')} as waiting, ${count('not null')} as rejected,
       (select extract(epoch from clock_timestamp() - created_at) * 1000 from ${events}
        where rejected_at is null order by position limit 1)::text as oldest_ms`,
  );
  const { waiting = '0', rejected = '0', oldest_ms: oldestMs = null } = rows[0] ?? {};
  return {
    waiting: Number(waiting),
    rejected: Number(rejected),
    oldestMs: oldestMs === null ? null : Math.max(0, Math.round(Number(oldestMs))),
  };
}

/** Runs a statement. Statements return numbers as text, because drivers parse `bigint` differently. */
async function query<Row>(
  connection: PostgresConnection,
  text: string,
  values: unknown[] = [],
): Promise<Row[]> {
  const { rows } = await connection.query(text, values);
  return rows as Row[];
}
