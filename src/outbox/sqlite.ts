/**
 * The outbox in SQLite 3.38 or later, with `node:sqlite`, `better-sqlite3` or a compatible driver. SQLite has one writer at a
 * time, so positions follow the order of the commits. Owns the tables `nuncio_outbox` and `nuncio_outbox_lease`; the option
 * `table` sets another name.
 */

import { accountOf, assertSameEvent, type EventRow, type NewEvent, toJson, toRow } from './event.ts';
import { checkName, quoteName } from './identifier.ts';
import { createTransact, type SqliteConnection, type Transact, type Value } from './sqlite_transaction.ts';
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

export interface SqliteOutboxOptions {
  /**
   * The connection of the relay and of operators. The application can share its connection: the relay waits while a
   * transaction is open on it. If your transactions await other work, give the relay a separate connection.
   */
  database: SqliteConnection;
  /** Default: `nuncio_outbox`. Maximum length: 50 bytes. */
  table?: string | undefined;
  /**
   * How long the relay retries while another connection writes: between 0 and 600,000 milliseconds. Default: 5,000. The
   * process is not blocked meanwhile.
   */
  busyTimeoutMs?: number | undefined;
}

export interface SqliteOutbox extends Outbox {
  /**
   * Appends an event in the open transaction of the connection. The event commits with the change.
   * @returns the event's id
   * @throws TypeError when no server would accept the event
   */
  append(connection: SqliteConnection, event: NewEvent): string;
  /** Appends events in the given order with one statement. @returns their ids */
  appendMany(connection: SqliteConnection, events: readonly NewEvent[]): string[];
}

/** Quoted table names. */
interface Tables {
  events: string;
  lease: string;
}

const busyTimeoutDefaultMs = 5_000;
const busyTimeoutMaxMs = 600_000;

/** @throws TypeError when an option is missing or invalid */
export function sqliteOutbox(options: SqliteOutboxOptions): SqliteOutbox {
  const { database, busyTimeoutMs = busyTimeoutDefaultMs } = options;
  if (typeof database?.prepare !== 'function' || typeof database.exec !== 'function') {
    throw new TypeError('database must have the methods exec and prepare');
  }
  if (!(busyTimeoutMs >= 0 && busyTimeoutMs <= busyTimeoutMaxMs)) {
    throw new TypeError(`busyTimeoutMs is ${busyTimeoutMs}: it must be between 0 and ${busyTimeoutMaxMs}`);
  }
  const name = checkName('table', options.table ?? 'nuncio_outbox');
  const tables = { events: quoteName(name), lease: quoteName(`${name}_lease`) };
  const statements = createStatements(tables, quoteName(`${name}_waiting`));
  const transact = createTransact(database, busyTimeoutMs);
  const sql = `${statements.join(';\n\n')};\n`;
  const appendMany = (connection: SqliteConnection, events: readonly NewEvent[]) =>
    appendEvents(connection, tables.events, events);
  return {
    sql,
    setUp: () => transact('immediate', () => database.exec(sql)).then(() => {}),
    append: (connection, event) => appendMany(connection, [event])[0] as string,
    appendMany,
    rejected: rejectedEvents(database, transact, tables),
    stats: () => transact('deferred', () => readStats(database, tables)),
    ...relaySide(database, transact, tables),
  };
}

function createStatements({ events, lease }: Tables, index: string): string[] {
  return [
    `create table if not exists ${events} (
  position integer primary key autoincrement,
  id text not null unique,
  kind text not null,
  account_id text,
  external_id text,
  body text not null check (json_valid(body)),
  created_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  rejected_at integer,
  reason text,
  check ((account_id is null) <> (external_id is null))
)`,
    `create index if not exists ${index} on ${events} (position) where rejected_at is null`,
    `create table if not exists ${lease} (
  only_row integer not null default 1 unique check (only_row = 1),
  holder text not null,
  until integer not null
)`,
  ];
}

function appendEvents(connection: SqliteConnection, table: string, events: readonly NewEvent[]): string[] {
  const rows = events.map(toRow);
  if (rows.length === 0) return [];
  const { changes } = connection
    .prepare(
      `insert into ${table} (id, kind, account_id, external_id, body)
       select value ->> 'id', value ->> 'kind', value ->> 'account_id', value ->> 'external_id', value ->> 'body'
       from json_each(?) where true order by key
       on conflict (id) do nothing`,
    )
    .run(JSON.stringify(rows));
  if (Number(changes) < rows.length) checkStored(connection, table, rows);
  return rows.map(({ id }) => id);
}

/** @throws Error when the outbox has a different event with the id of a row */
function checkStored(connection: SqliteConnection, table: string, rows: readonly EventRow[]): void {
  const stored = connection
    .prepare(
      `select id, kind, account_id, external_id, body from ${table}
       where id in (select value from json_each(?))`,
    )
    .all(JSON.stringify(rows.map(({ id }) => id))) as EventRow[];
  const byId = new Map(stored.map((row) => [row.id, row]));
  for (const row of rows) assertSameEvent(row, byId.get(row.id) as EventRow);
}

function relaySide(
  database: SqliteConnection,
  transact: Transact,
  { events, lease }: Tables,
): Omit<Outbox, 'sql' | 'setUp' | 'rejected' | 'stats'> {
  const all = (text: string, ...values: Value[]) => database.prepare(text).all(...values);
  const run = (text: string, ...values: Value[]) => Number(database.prepare(text).run(...values).changes);
  return {
    async hasWaiting() {
      const text = `select 1 as found from ${events} where rejected_at is null limit 1`;
      return (await transact('deferred', () => all(text))).length > 0;
    },
    hold(holder, leaseMs) {
      return transact('immediate', () => {
        const now = Date.now();
        // A lease that ends later than a new one is from before the clock was set back.
        const changed = run(
          `insert into ${lease} (holder, until) values (?, ?)
           on conflict (only_row) do update set holder = excluded.holder, until = excluded.until
           where holder = excluded.holder or until <= ? or until > excluded.until`,
          holder,
          now + leaseMs,
          now,
        );
        return changed > 0;
      });
    },
    async release(holder) {
      await transact('immediate', () =>
        run(`update ${lease} set holder = '', until = 0 where holder = ?`, holder),
      );
    },
    read: (limits) => transact('deferred', () => readHead(database, events, limits)),
    async forget(positions) {
      await transact('immediate', () =>
        run(
          `delete from ${events} where position in (select value from json_each(?))`,
          JSON.stringify(positions.map(Number)),
        ),
      );
    },
    async reject(holder, rejections) {
      await transact('immediate', () => {
        for (const { position, reason } of rejections) {
          run(
            `update ${events} set rejected_at = ?, reason = ?
             where position = ? and exists (select 1 from ${lease} where holder = ?)`,
            Date.now(),
            reason,
            Number(position),
            holder,
          );
        }
      });
    },
  };
}

function readHead(database: SqliteConnection, events: string, limits: ReadLimits): WaitingEvent[] {
  const rows = database
    .prepare(
      `select position, id, kind, account_id, external_id, body
       from (
         select *, sum(bytes) over (order by position) - bytes as bytes_before
         from (
           select position, id, kind, account_id, external_id, body, length(cast(body as blob)) as bytes
           from ${events} where rejected_at is null order by position limit ?
         )
       )
       where bytes_before < ? order by position`,
    )
    .all(limits.events, limits.bytes) as (EventRow & { position: number | bigint })[];
  return rows.map(({ position, id, kind, body, account_id, external_id }) => {
    return { position: String(position), id, kind, account: accountOf({ account_id, external_id }), body };
  });
}

function rejectedEvents(database: SqliteConnection, transact: Transact, { events }: Tables): RejectedEvents {
  const change = (text: string, ...values: Value[]): Promise<number> =>
    transact('immediate', () => Number(database.prepare(text).run(...values).changes));
  const retry = `update ${events} set rejected_at = null, reason = null, body = coalesce(?, body) where rejected_at is not null`;
  return {
    list({ limit = pageDefault, after = '0' } = {}) {
      const text = `
        select position, id, kind, account_id, external_id, body, reason, created_at, rejected_at
        from ${events} where rejected_at is not null and position > ? order by position limit ?`;
      return transact('deferred', () => {
        const rows = database.prepare(text).all(Number(after), Math.min(limit, pageMax)) as RejectedRow[];
        return rows.map(toRejected);
      });
    },
    async retry(id, corrected) {
      const body = corrected === undefined ? null : toJson(corrected.body);
      return (await change(`${retry} and id = ?`, body, id)) > 0;
    },
    retryAll: () => change(retry, null),
    async discard(id) {
      return (await change(`delete from ${events} where id = ? and rejected_at is not null`, id)) > 0;
    },
  };
}

interface RejectedRow extends EventRow {
  position: number | bigint;
  reason: string;
  created_at: number | bigint;
  rejected_at: number | bigint;
}

function toRejected(row: RejectedRow): RejectedEvent {
  return {
    position: String(row.position),
    id: row.id,
    kind: row.kind,
    account: accountOf(row),
    body: JSON.parse(row.body),
    reason: row.reason,
    createdAt: new Date(Number(row.created_at)),
    rejectedAt: new Date(Number(row.rejected_at)),
  };
}

function readStats(database: SqliteConnection, { events }: Tables): OutboxStats {
  const count = (condition: string) =>
    `(select count(*) from (select 1 from ${events} where rejected_at is ${condition} limit ${countedMax}))`;
  const [row] = database
    .prepare(
      `select ${count('null')} as waiting, ${count('not null')} as rejected,
         (select created_at from ${events} where rejected_at is null order by position limit 1) as created_at`,
    )
    .all() as { waiting: number; rejected: number; created_at: number | null }[];
  const createdAt = row?.created_at ?? null;
  return {
    waiting: Number(row?.waiting),
    rejected: Number(row?.rejected),
    oldestMs: createdAt === null ? null : Math.max(0, Date.now() - Number(createdAt)),
  };
}
