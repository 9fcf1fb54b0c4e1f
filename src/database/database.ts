/**
 * The database: a pool of connections and the one way to run statements on it. Statements are whole SQL in
 * Kysely's `sql` template, written where they are used, with their row's type beside them.
 *
 * A `Transaction` can only come from `db.transaction().execute(...)`: a function that takes one says by its
 * type that it must be part of a larger whole.
 */

import { Kysely, type Transaction as KyselyTransaction, PostgresDialect } from 'kysely';
import pg from 'pg';
import { searchPathStatement } from './schema.ts';

/** No table is described to Kysely: rows are typed at the statement. */
export type Tables = Record<never, never>;
export type Database = Kysely<Tables>;
export type Transaction = KyselyTransaction<Tables>;

/** Milliseconds after which waiting for a connection is given up: the answer is then 503. */
export const connectionTimeoutMs = 5_000;
/** Milliseconds after which the database itself ends a statement that nobody can still be waiting for. */
const statementTimeoutMs = 60_000;
/** Milliseconds after which an answer is not waited for any more: whoever should give it has gone without a word. */
const answerTimeoutMs = statementTimeoutMs + 5_000;
/**
 * Milliseconds after which the database ends a transaction that its client does not go on with. No transaction waits for
 * anything but the database, so its node is paused or cut off, and others wait for its locks.
 */
const idleTransactionTimeoutMs = 10_000;
/** Statements are prepared once for each connection, up to this many different ones. */
const preparedStatementsMax = 500;

export interface DatabaseOptions {
  connectionString: string;
  /** Connections at most. */
  connectionsMax: number;
  /** Milliseconds after which the database ends a statement; a minute where left out. */
  statementTimeoutMs?: number;
  /** Milliseconds that a free connection is waited for. */
  connectionTimeoutMs?: number;
  /** Milliseconds that an answer is waited for; by default longer than the database lets a statement run. */
  answerTimeoutMs?: number;
  /** Told of connections that broke while idle; they are replaced by themselves. */
  onIdleError?: (error: Error) => void;
  /** Called with each new connection, whose search path is set, before anything else uses it. Where it throws, the connection is closed. */
  onConnect?: (client: Pick<pg.ClientBase, 'query'>) => Promise<void>;
}

/** Opens lazily: the first statement connects. Close it with `db.destroy()`. */
export function openDatabase(options: DatabaseOptions): Database {
  const pool = new pg.Pool({
    connectionString: options.connectionString,
    connectionTimeoutMillis: options.connectionTimeoutMs ?? connectionTimeoutMs,
    keepAlive: true,
    statement_timeout: options.statementTimeoutMs ?? statementTimeoutMs,
    idle_in_transaction_session_timeout: idleTransactionTimeoutMs,
    query_timeout: options.answerTimeoutMs ?? answerTimeoutMs,
    application_name: 'nuncio',
    max: options.connectionsMax,
    idleTimeoutMillis: 30_000,
    Client: PreparingClient,
    onConnect: async (client: Pick<pg.ClientBase, 'query'>) => {
      await client.query(searchPathStatement(options.connectionString));
      await options.onConnect?.(client);
    },
  });
  pool.on('error', (error) => options.onIdleError?.(error));
  // A connection that breaks while it is used says so to whoever waits for its answer; the driver says it a second
  // time as an event, and an event `error` that nobody hears ends the process.
  pool.on('connect', (client) => client.on('error', () => {}));
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) });
  pools.set(db, pool);
  return db;
}

/** Runs the work in the transaction that is given, or in one of its own. */
export function inTransaction<T>(
  db: Database | Transaction,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  return db.isTransaction ? work(db as Transaction) : db.transaction().execute(work);
}

/** Of an error that counts as "the database is unavailable". */
export const lateMessage = 'the database did not answer in time';

/** @throws Error when the database takes longer; it is not waited for any more */
export function within<Result>(ms: number, work: Promise<Result>): Promise<Result> {
  const { promise, resolve, reject } = Promise.withResolvers<Result>();
  const timer = setTimeout(() => reject(new Error(lateMessage)), ms);
  work.then(resolve, reject).finally(() => clearTimeout(timer));
  return promise;
}

const pools = new WeakMap<Database, pg.Pool>();

/** Connections that are open, those of them that nobody uses, and those who wait for one. */
export function poolStatus(db: Database): { total: number; idle: number; waiting: number } {
  const pool = pools.get(db);
  return { total: pool?.totalCount ?? 0, idle: pool?.idleCount ?? 0, waiting: pool?.waitingCount ?? 0 };
}

/** Days for which partitions are made ahead. */
export const partitionDaysAhead = 7;

/**
 * The table that has no partition for a row: those of the days to come are made ahead of time, but the database's clock may
 * have gone further ahead. Undefined for any other error.
 */
function unpartitionedTable(error: unknown): string | undefined {
  if (!(error instanceof pg.DatabaseError) || error.code !== '23514') return undefined;
  return error.message.startsWith('no partition of relation') ? error.table : undefined;
}

/** What the driver says when an answer did not come. */
const queryTimeoutMessage = 'Query read timeout';

const statementNames = new Map<string, string>();
/** Part of the names; another one when what was prepared is of no use any more. */
let preparedGeneration = 0;

/**
 * Names each parametrised statement, so that PostgreSQL parses and plans it once for each connection, and gives up a
 * connection that owes an answer: what comes over it later is nobody's.
 */
class PreparingClient extends pg.Client {
  #inTransaction = false;
  /** A table whose partition a transaction did not find. */
  #unpartitioned: string | undefined;

  // biome-ignore lint/suspicious/noExplicitAny: the overloads of pg's own query are passed through unchanged
  #prepared(name: string, text: string, values: any[], rest: any[]): any {
    // biome-ignore lint/suspicious/noExplicitAny: the driver returns a promise where there is no callback
    const answer: any = super.query({ name, text, values }, ...(rest as []));
    if (typeof answer?.catch !== 'function') return answer;
    return answer.catch(async (error: Error) => {
      const table = unpartitionedTable(error);
      if (table !== undefined) {
        if (this.#inTransaction) this.#unpartitioned = table;
        else if (await this.#makePartitions(table))
          return super.query({ name, text, values }, ...(rest as []));
      }
      const anew = prepareAnew(error, name, text);
      // The error has ended a transaction; outside of one nothing has happened yet.
      if (anew === undefined || this.#inTransaction) throw error;
      return this.#prepared(anew, text, values, rest);
    });
  }

  // biome-ignore lint/suspicious/noExplicitAny: the overloads of pg's own query are passed through unchanged
  override query(...parameters: any[]): any {
    const [text, values, ...rest] = parameters;
    if (text === 'rollback' && this.#unpartitioned !== undefined) return this.#rollBack();
    if (text === 'begin') this.#inTransaction = true;
    else if (text === 'commit' || text === 'rollback') this.#inTransaction = false;
    if (typeof text === 'string' && Array.isArray(values) && values.length > 0) {
      let converted: (string | Buffer | null)[];
      try {
        converted = values.map((value) => prepareValue(value));
      } catch (error) {
        return Promise.reject(error);
      }
      const name = statementName(text);
      if (name !== undefined) return this.#watched(this.#prepared(name, text, converted, rest));
    }
    return this.#watched(super.query(...(parameters as [string])));
  }

  /** Whoever tries the transaction again finds the partition. */
  async #rollBack(): Promise<unknown> {
    const table = this.#unpartitioned as string;
    this.#unpartitioned = undefined;
    this.#inTransaction = false;
    const result = await this.#watched(super.query('rollback'));
    await this.#makePartitions(table);
    return result;
  }

  /** @returns whether they are there now */
  async #makePartitions(table: string): Promise<boolean> {
    const made = super.query('select ensure_day_partitions($1, $2)', [table, partitionDaysAhead]);
    return made.then(
      () => true,
      () => false,
    );
  }

  #watched(result: unknown): unknown {
    if (!(result instanceof Promise)) return result;
    return result.catch((error: Error) => {
      if (error.message === queryTimeoutMessage) {
        // At its end at once, so that the pool gives it to nobody else.
        this.end().catch(() => {});
        this.connection.stream.destroy();
      }
      throw error;
    });
  }
}

/**
 * How the driver converts a value. A conversion can throw. Inside the driver that happens when the statement is half sent:
 * the connection then believes that a statement is prepared which is not. The driver's types do not list the function.
 */
const { prepareValue } = (
  pg as unknown as { utils: { prepareValue: (value: unknown) => string | Buffer | null } }
).utils;

/** What a statement with parameters is prepared as; undefined where there are too many different ones. */
function statementName(text: string): string | undefined {
  let name = statementNames.get(text);
  if (name === undefined && statementNames.size < preparedStatementsMax) {
    name = `s${statementNames.size}`;
    statementNames.set(text, name);
  }
  return name === undefined || preparedGeneration === 0 ? name : `${name}_${preparedGeneration}`;
}

/**
 * What a statement is prepared as from now on, where what it was prepared as is of no use any more: a migration has
 * added a column meanwhile, and everything is prepared anew, on every connection.
 * @param name what it was prepared as
 * @returns undefined for any other error
 */
function prepareAnew(error: Error, name: string, text: string): string | undefined {
  if (!/cached plan must not change result type/.test(error.message)) return undefined;
  if (statementName(text) === name) preparedGeneration += 1;
  return statementName(text);
}

/**
 * SQLSTATE classes and Node's codes that mean "the database is not there", not "the statement is wrong". One that takes
 * no writes (25006) was the primary until somebody else became it.
 */
const unavailable =
  /^(08...|53...|57P0[1-5]|25P0[34]|25006|ECONNABORTED|ECONNREFUSED|ECONNRESET|EHOSTDOWN|EHOSTUNREACH|ENETDOWN|ENETUNREACH|ENOENT|ENOTFOUND|EPIPE|ETIMEDOUT|EAI_AGAIN)$/;

/** Whether the database ended a statement because it took too long (or because somebody asked for its end). */
export function isStatementTimeout(error: unknown): boolean {
  return error instanceof Error && (error as { code?: unknown }).code === '57014';
}

/** Whether an error says that the database cannot be reached or is shutting down or full of connections. */
export function isDatabaseUnavailable(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = (error as { code?: unknown }).code;
  if (typeof code === 'string' && unavailable.test(code)) return true;
  // Made by now, or soon.
  if (unpartitionedTable(error) !== undefined) return true;
  return /Connection terminated|Query read timeout|the database did not answer in time|timeout exceeded when trying to connect|Client has encountered a connection error/.test(
    error.message,
  );
}
