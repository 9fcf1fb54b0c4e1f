/**
 * Stores of handled deliveries: in memory, PostgreSQL or SQLite. A row has a key, the highest position that was handled, and the
 * claim of the one that is being handled. For `once` the key is a delivery's id and the position 1; for `inOrder` the key is
 * that of a subscription and the position the sequence. Owns the table `nuncio_handled`, which the option `table` renames.
 */

export interface DeliveryStore {
  /**
   * Claims a position that is higher than the handled one, if nobody has a claim.
   * @returns null if it is claimed, and otherwise the highest position that was handled
   */
  claim(key: string, position: number, token: string, leaseMs: number): Promise<number | null>;
  /** The claimed position is handled. Without effect if the claim has expired and another one was made. */
  complete(key: string, position: number, token: string): Promise<void>;
  /** Gives the claim back. */
  release(key: string, token: string): Promise<void>;
}

export interface MemoryStoreOptions {
  /** The most keys that are kept; the oldest are forgotten. Default: 10,000. */
  max?: number | undefined;
}

/** A store for one process. It forgets everything when the process ends. */
export function memoryStore({ max = 10_000 }: MemoryStoreOptions = {}): DeliveryStore {
  const rows = new Map<string, { position: number; token: string | null; until: number }>();
  return {
    async claim(key, position, token, leaseMs) {
      const now = Date.now();
      const row = rows.get(key) ?? { position: 0, token: null, until: 0 };
      if (row.position >= position || (row.token !== null && row.until > now)) return row.position;
      rows.delete(key);
      rows.set(key, { position: row.position, token, until: now + leaseMs });
      for (const [oldest, { until }] of rows) {
        if (rows.size <= max) break;
        if (until <= now) rows.delete(oldest);
      }
      return null;
    },
    async complete(key, position, token) {
      const row = rows.get(key);
      if (row?.token === token) rows.set(key, { position, token: null, until: 0 });
    },
    async release(key, token) {
      const row = rows.get(key);
      if (row?.token === token) rows.set(key, { ...row, token: null, until: 0 });
    },
  };
}

export interface TableOptions {
  /** Default: `nuncio_handled`. */
  table?: string | undefined;
}

/** A `Pool` or `Client` of `pg`, or any object with this method. */
export interface PostgresConnectionLike {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
}

/**
 * A store in PostgreSQL. With the connection of your open transaction, the delivery is recorded if the transaction commits.
 *
 *   create table nuncio_handled (
 *     key text primary key, position bigint not null, token text, until timestamptz not null
 *   )
 */
export function postgresStore(connection: PostgresConnectionLike, options?: TableOptions): DeliveryStore {
  const now = 'clock_timestamp()';
  return sqlStore(options, now, `${now} + ? * interval '1 millisecond'`, async (text, values) => {
    let count = 0;
    const { rows } = await connection.query(
      text.replaceAll('?', () => {
        count += 1;
        return `$${count}`;
      }),
      values,
    );
    return rows;
  });
}

type Value = string | number;

/** A `DatabaseSync` of `node:sqlite`, a database of `better-sqlite3`, or any object with this method. */
export interface SqliteDatabaseLike {
  prepare(text: string): { all(...values: Value[]): unknown[] };
}

/**
 * A store in SQLite 3.35 or later.
 *
 *   create table nuncio_handled (
 *     key text primary key, position integer not null, token text, until integer not null
 *   )
 */
export function sqliteStore(database: SqliteDatabaseLike, options?: TableOptions): DeliveryStore {
  const now = "cast((julianday('now') - 2440587.5) * 86400000 as integer)";
  return sqlStore(options, now, `${now} + ?`, async (text, values) => database.prepare(text).all(...values));
}

/**
 * @param now the time in SQL
 * @param later the time after a number of milliseconds, which is its parameter
 * @param run runs a statement with a `?` for each value, and returns its rows
 */
function sqlStore(
  { table = 'nuncio_handled' }: TableOptions = {},
  now: string,
  later: string,
  run: (text: string, values: Value[]) => Promise<unknown[]>,
): DeliveryStore {
  if (!/^\w{1,50}(\.\w{1,50})?$/.test(table))
    throw new TypeError('table must be a name, or a schema and a name');
  return {
    async claim(key, position, token, leaseMs) {
      const claimed = await run(
        `insert into ${table} as handled (key, position, token, until)
         values (?, 0, ?, ${later})
         on conflict (key) do update set token = excluded.token, until = excluded.until
         where handled.position < ? and (handled.token is null or handled.until <= ${now})
         returning 1`,
        [key, token, leaseMs, position],
      );
      if (claimed.length > 0) return null;
      const [row] = await run(`select position from ${table} where key = ?`, [key]);
      // A row that was deleted since was not handled. Drivers of PostgreSQL return a `bigint` as text.
      return Number((row as { position: unknown } | undefined)?.position ?? 0);
    },
    async complete(key, position, token) {
      const text = `update ${table} set position = ?, token = null where key = ? and token = ? returning 1`;
      await run(text, [position, key, token]);
    },
    async release(key, token) {
      await run(`update ${table} set token = null where key = ? and token = ? returning 1`, [key, token]);
    },
  };
}
