/**
 * The connection pool. All statements run through it, as complete SQL in Kysely's `sql` template, written where they are
 * used, with the row type beside them.
 *
 * Only `db.transaction().execute(...)` creates a `Transaction`. A function that takes one must run inside a transaction of
 * its caller.
 */

import { Kysely, type Transaction as KyselyTransaction, PostgresDialect, sql } from 'kysely';
import pg from 'pg';
import { FairPool } from './fair_pool.ts';
import { searchPathStatement } from './schema.ts';

/** Kysely knows no tables. Each statement declares its row type. */
export type Tables = Record<never, never>;
export type Database = Kysely<Tables>;
export type Transaction = KyselyTransaction<Tables>;

/** How long a request waits for a connection before the server responds 503. */
export const connectionTimeoutMs = 5_000;
/** PostgreSQL cancels a statement after this time. */
const statementTimeoutMs = 60_000;
/**
 * The client gives up on a result so long after the time of the statement. PostgreSQL is then unreachable, or it would have cancelled the
 * statement.
 */
const resultDelayMs = 5_000;
/**
 * PostgreSQL ends a transaction that is idle for this long. Transactions wait only for the database, so the node of
 * an idle one is paused or disconnected, and others wait for its locks.
 */
const idleTransactionTimeoutMs = 10_000;
/** SQLSTATE of `lock_timeout`. */
export const lockNotAvailable = '55P03';
/** SQLSTATE of a deadlock. */
export const deadlockDetected = '40P01';
/** Up to this many different statements are prepared, once per connection, and so many of them whose text depends on a request. */
const preparedStatementsMax = 500;
const variedStatementsMax = 200;
const variedMark = '/* varied */';
/** Begins a statement whose text depends on a request. Whoever sends many different ones would leave none to the statements of others. */
export const varied = sql.raw(variedMark);

export interface DatabaseOptions {
  connectionString: string;
  connectionsMax: number;
  /** PostgreSQL cancels a statement after this time. Default: one minute. */
  statementTimeoutMs?: number;
  /** PostgreSQL cancels a statement of a transaction that waits this long for one lock. Default: only the statement timeout. */
  lockTimeoutMs?: number;
  /** Settings of each session, besides its timeouts. */
  settings?: Readonly<Record<string, string>>;
  /** How long to wait for a free connection. */
  connectionTimeoutMs?: number;
  /** Whether a free connection is for the user that has had them for least time lately. Default: users take turns. */
  isByTime?: boolean;
  /** How long to wait for a result. Default: 5 s longer than the statement timeout. */
  resultTimeoutMs?: number;
  /** Receives errors of idle connections. The pool replaces those connections. */
  onIdleError?: (error: Error) => void;
  /** Runs on each new connection, after its settings are made and before first use. If it throws, the connection closes. */
  onConnect?: (client: Pick<pg.ClientBase, 'query'>) => Promise<void>;
}

/** Connects with the first statement. Close the pool with `db.destroy()`. */
export function openDatabase(options: DatabaseOptions): Database {
  const waitMsMax = options.connectionTimeoutMs ?? connectionTimeoutMs;
  const statementMs = options.statementTimeoutMs ?? statementTimeoutMs;
  // By statements, as the search path (schema.ts): a pooler refuses startup parameters, or ignores them without a word.
  const settings = Object.entries({
    statement_timeout: String(statementMs),
    idle_in_transaction_session_timeout: String(idleTransactionTimeoutMs),
    ...options.settings,
  }).map(([name, value]) => `set ${name} = '${value}'`);
  const pool = new pg.Pool({
    connectionString: options.connectionString,
    connectionTimeoutMillis: waitMsMax,
    keepAlive: true,
    query_timeout: options.resultTimeoutMs ?? statementMs + resultDelayMs,
    application_name: 'nuncio',
    max: options.connectionsMax,
    idleTimeoutMillis: 30_000,
    Client: clientFor(options.lockTimeoutMs),
    onConnect: async (client: Pick<pg.ClientBase, 'query'>) => {
      await client.query([searchPathStatement(options.connectionString), ...settings].join('; '));
      await options.onConnect?.(client);
    },
  });
  pool.on('error', (error) => {
    // The pool adds the client, with its statements and its key. A log of the error would contain them.
    delete (error as Error & { client?: unknown }).client;
    options.onIdleError?.(error);
  });
  // When a connection breaks in use, the pending query rejects. The driver also emits `error`, and an `error` event without
  // a listener ends the process.
  pool.on('connect', (client) => {
    client.on('error', () => {});
    preparing(client).onSilent = () => fair.suspectAll();
  });
  pool.on('release', (_error, client) => {
    preparing(client).resultMs = undefined;
  });
  const fair = new FairPool(pool, options.connectionsMax, waitMsMax, options.isByTime);
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool: fair }) });
  pools.set(db, { pool, fair });
  return db;
}

/**
 * The same connections, for short statements that others wait for. A connection without a result after `ms` milliseconds is closed, so that
 * the next statement has another one. Do not close this pool.
 */
export function withResultsWithin(ms: number, db: Database): Database {
  const { fair } = pools.get(db) as { fair: FairPool };
  const connect = async () => {
    const client = await fair.connect();
    preparing(client).resultMs = ms;
    return client;
  };
  return new Kysely<Tables>({
    dialect: new PostgresDialect({ pool: { connect, end: async () => {}, options: fair.options } }),
  });
}

/** Runs the work in the given transaction, or in a new one. */
export function inTransaction<T>(
  db: Database | Transaction,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  return db.isTransaction ? work(db as Transaction) : db.transaction().execute(work);
}

/** Counts as "the database is unavailable". */
export class DatabaseTimeoutError extends Error {
  override readonly name = 'DatabaseTimeoutError';

  constructor() {
    super('the database did not respond in time');
  }
}

/** @throws DatabaseTimeoutError after `ms` milliseconds; the work itself continues */
export function withTimeout<Result>(ms: number, work: Promise<Result>): Promise<Result> {
  const { promise, resolve, reject } = Promise.withResolvers<Result>();
  const timer = setTimeout(() => reject(new DatabaseTimeoutError()), ms);
  work.then(resolve, reject).finally(() => clearTimeout(timer));
  return promise;
}

const pools = new WeakMap<Database, { pool: pg.Pool; fair: FairPool }>();

export interface PoolStatus {
  /** Open connections. */
  total: number;
  idle: number;
  /** What waits because all connections are in use. */
  waiting: number;
  /** How often a connection was given out. */
  acquired: number;
}

export function poolStatus(db: Database): PoolStatus {
  const { pool, fair } = pools.get(db) ?? {};
  return {
    total: pool?.totalCount ?? 0,
    idle: pool?.idleCount ?? 0,
    waiting: fair?.waiting ?? 0,
    acquired: fair?.acquired ?? 0,
  };
}

/** The driver's message when a result did not arrive in time. The driver gives it no code. */
const queryTimeoutMessage = 'Query read timeout';
/** The driver's errors about a lost connection. The driver gives them no code. */
const connectionErrorMessages = [
  'Connection terminated',
  queryTimeoutMessage,
  'timeout exceeded when trying to connect',
  'Client has encountered a connection error',
];

const statementNames = new Map<string, string>();
let variedStatements = 0;
/** Part of statement names. It changes when the prepared statements become unusable. */
let preparedGeneration = 0;

/** Whether the columns of a result depend on the table. */
const selectsAll = /(?:\bselect|\breturning|,)\s+(?:\w+\.)?\*/;

type NamedStatement = {
  name: string;
  text: string;
  values: unknown[];
  query_timeout: number | undefined;
};

/**
 * A client that names each parametrised statement, so that PostgreSQL parses and plans it once per connection. It closes a
 * connection after a result timeout, because a late result would be taken for that of the next query.
 */
class PreparingClient extends pg.Client {
  #inTransaction = false;
  protected readonly begin: string = 'begin';
  /** Milliseconds to wait for a result; undefined for the limit of the pool. */
  resultMs: number | undefined;
  /** Called when a result did not arrive in time. */
  onSilent: () => void = () => {};

  #prepared(statement: NamedStatement, rest: unknown[]): unknown {
    // biome-ignore lint/suspicious/noExplicitAny: the driver returns a promise where there is no callback
    const result: any = super.query(statement, ...(rest as []));
    if (typeof result?.catch !== 'function') return result;
    return result.catch((error: Error) => {
      const name = renameStale(error, statement.name, statement.text);
      // The error has aborted the transaction. Outside of one, the statement had no effect and can run again.
      if (name === undefined || this.#inTransaction) throw error;
      return this.#prepared({ ...statement, name }, rest);
    });
  }

  // biome-ignore lint/suspicious/noExplicitAny: the overloads of pg's own query are passed through unchanged
  override query(...parameters: any[]): any {
    const [text, values, ...rest] = parameters;
    if (text === 'begin') this.#inTransaction = true;
    else if (text === 'commit' || text === 'rollback') this.#inTransaction = false;
    if (typeof text === 'string' && Array.isArray(values) && values.length > 0) {
      let converted: (string | Buffer | null)[];
      try {
        converted = values.map((value) => prepareValue(value));
      } catch (error) {
        return Promise.reject(error);
      }
      // A migration that adds a column makes this statement stale, and an error would abort the transaction.
      const isSafe = !this.#inTransaction || !selectsAll.test(text);
      const name = isSafe ? statementName(text) : undefined;
      const statement = { text, values: converted, query_timeout: this.resultMs };
      return this.#watched(
        name === undefined
          ? super.query(statement, ...(rest as []))
          : this.#prepared({ name, ...statement }, rest),
      );
    }
    if (typeof text !== 'string') return this.#watched(super.query(...(parameters as [string])));
    const statement = { text: text === 'begin' ? this.begin : text, query_timeout: this.resultMs };
    return this.#watched(super.query(statement, ...(parameters.slice(1) as [])));
  }

  #watched(result: unknown): unknown {
    if (!(result instanceof Promise)) return result;
    return result.catch((error: Error) => {
      if (error.message === queryTimeoutMessage) {
        // Close it now, so that the pool does not reuse it.
        this.end().catch(() => {});
        this.connection.stream.destroy();
        this.onSilent();
      }
      throw error;
    });
  }
}

/** The pool makes its clients of this class (`Client`), which the types of the driver and of Kysely do not say. */
function preparing(client: unknown): PreparingClient {
  return client as PreparingClient;
}

/** Statements outside of transactions have no limit: they are mostly reads, which wait only for migrations. */
function clientFor(lockTimeoutMs: number | undefined): typeof PreparingClient {
  if (lockTimeoutMs === undefined) return PreparingClient;
  return class extends PreparingClient {
    // One message, so it costs no round trip.
    protected override readonly begin = `begin; set local lock_timeout = ${lockTimeoutMs}`;
  };
}

/**
 * The driver's conversion of parameter values. It can throw. If it throws inside the driver, the statement is half sent and
 * the connection believes that a statement is prepared that is not. The driver's types do not list the function.
 */
const { prepareValue } = (
  pg as unknown as { utils: { prepareValue: (value: unknown) => string | Buffer | null } }
).utils;

/** Returns the name to prepare a statement under, or undefined when there are too many different statements. */
function statementName(text: string): string | undefined {
  let name = statementNames.get(text);
  if (name === undefined && statementNames.size < preparedStatementsMax) {
    const isVaried = text.startsWith(variedMark);
    if (isVaried && variedStatements === variedStatementsMax) return undefined;
    if (isVaried) variedStatements += 1;
    name = `s${statementNames.size}`;
    statementNames.set(text, name);
  }
  return name === undefined || preparedGeneration === 0 ? name : `${name}_${preparedGeneration}`;
}

/**
 * Returns a new name for a statement whose prepared form is stale because a migration has added a column. All statements
 * are then prepared again on every connection. The error's SQLSTATE (0A000) also means other things, so the function in
 * PostgreSQL's source decides.
 * @param name the name of the stale statement
 * @returns undefined for any other error
 */
function renameStale(error: Error, name: string, text: string): string | undefined {
  const { code, routine } = error as pg.DatabaseError;
  if (code !== '0A000' || routine !== 'RevalidateCachedQuery') return undefined;
  if (statementName(text) === name) preparedGeneration += 1;
  return statementName(text);
}

/**
 * SQLSTATEs and Node.js error codes that mean "the database is unavailable" rather than "the statement is wrong". A
 * read-only database (25006) is a former primary after a failover.
 */
const unavailable =
  /^(08...|53...|57P0[1-5]|25P0[34]|25006|ECONNABORTED|ECONNREFUSED|ECONNRESET|EHOSTDOWN|EHOSTUNREACH|ENETDOWN|ENETUNREACH|ENOENT|ENOTFOUND|EPIPE|ETIMEDOUT|EAI_AGAIN)$/;

/** Whether PostgreSQL cancelled the statement, after its timeout or on request. */
export function isStatementTimeout(error: unknown): boolean {
  return error instanceof Error && (error as { code?: unknown }).code === '57014';
}

/** Whether PostgreSQL rolled back because a statement waited too long for a lock, or each of two transactions waited for the other. */
export function isLockFailure(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code } = error as { code?: unknown };
  return code === lockNotAvailable || code === deadlockDetected;
}

/** Whether a trigger of the migrations refused what a running node of an earlier version cannot serve. */
export function isForNewerNodes(error: unknown): boolean {
  return error instanceof Error && (error as { code?: unknown }).code === 'NUN01';
}

/** Whether the database is unreachable, shutting down, or out of connections. */
export function isDatabaseUnavailable(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = (error as { code?: unknown }).code;
  if (typeof code === 'string' && unavailable.test(code)) return true;
  if (error instanceof DatabaseTimeoutError) return true;
  return connectionErrorMessages.some((message) => error.message.includes(message));
}
