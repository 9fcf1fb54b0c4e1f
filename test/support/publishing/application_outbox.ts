/** Application outboxes for tests, in a database separate from Nuncio's. */

import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { type NewEvent, type Outbox, postgresOutbox, sqliteOutbox } from '../../../src/outbox/outbox.ts';
import { createForeignDatabase } from '../database/database.ts';
import { temporaryFolder } from '../servers/process.ts';
import { pushBody } from '../webhooks/apps.ts';

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

export interface TestOutbox {
  outbox: Outbox;
  /** The database: a URL, or the path of a file. */
  place: string;
  /** Appends events in a transaction that commits or rolls back. */
  append(events: readonly NewEvent[], end?: 'commit' | 'rollback'): Promise<string[]>;
  /** Opens the same outbox on another connection, as another process does. */
  another(): Promise<Outbox>;
  query(text: string): Promise<Record<string, unknown>[]>;
}

export const databases = ['PostgreSQL', 'SQLite'] as const;

export interface Names {
  table?: string;
  schema?: string;
}

export function openOutbox(
  scope: Scope,
  database: (typeof databases)[number],
  names: Names = {},
): Promise<TestOutbox> {
  return database === 'SQLite' ? openSqlite(scope, names) : openPostgres(scope, names);
}

async function openPostgres(scope: Scope, names: Names): Promise<TestOutbox> {
  const database = await createForeignDatabase();
  const pools: pg.Pool[] = [];
  const connect = () => {
    const pool = new pg.Pool({ connectionString: database.url, max: 3 });
    // The pool ends before its connections have closed, and dropping the database terminates those.
    pool.on('connect', (client) => client.on('error', () => {}));
    pool.on('error', () => {});
    pools.push(pool);
    return pool;
  };
  scope.after(async () => {
    await Promise.all(pools.map((pool) => pool.end()));
    await database.drop();
  });
  const pool = connect();
  if (names.schema !== undefined) await pool.query(`create schema ${pg.escapeIdentifier(names.schema)}`);
  const outbox = postgresOutbox({ pool, ...names });
  await outbox.setUp();
  return {
    outbox,
    place: database.url,
    async append(events, end = 'commit') {
      const client = await pool.connect();
      try {
        await client.query('begin');
        const ids = await outbox.appendMany(client, events);
        await client.query(end);
        return ids;
      } catch (error) {
        await client.query('rollback');
        throw error;
      } finally {
        client.release();
      }
    },
    another: async () => postgresOutbox({ pool: connect(), ...names }),
    query: async (text) => (await pool.query(text)).rows,
  };
}

async function openSqlite(scope: Scope, names: Names): Promise<TestOutbox> {
  const place = join(await temporaryFolder(scope), 'application.sqlite');
  const connections: DatabaseSync[] = [];
  const connect = () => {
    const connection = new DatabaseSync(place);
    connection.exec('pragma journal_mode = wal');
    connections.push(connection);
    return connection;
  };
  scope.after(async () => {
    for (const connection of connections) connection.close();
  });
  const connection = connect();
  const { schema: _none, ...table } = names;
  const outbox = sqliteOutbox({ database: connection, ...table });
  await outbox.setUp();
  return {
    outbox,
    place,
    async append(events, end = 'commit') {
      connection.exec('begin immediate');
      try {
        const ids = outbox.appendMany(connection, events);
        connection.exec(end);
        return ids;
      } catch (error) {
        connection.exec('rollback');
        throw error;
      }
    },
    another: async () => sqliteOutbox({ database: connect(), ...table }),
    query: async (text) => connection.prepare(text).all() as Record<string, unknown>[],
  };
}

/** Events of the kind `push`. */
export function pushes(account: NewEvent['account'], marks: readonly unknown[]): NewEvent[] {
  return marks.map((mark) => ({ kind: 'push', account, body: pushBody(mark), id: String(mark) }));
}
