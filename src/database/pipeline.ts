/**
 * Statements of many requests, carried out together: those that come while a connection is busy are sent in one piece
 * when it is free, are one transaction, and cost one commit and one waking-up on either side instead of one each. For
 * the short statements of the hottest requests.
 *
 *   given → waiting (for the end of this turn of the event loop, and for a connection) → sent with others → committed,
 *   and only then answered;   where one of them is refused, all were rolled back: each is carried out by itself
 *
 * What is sent together waits for the slowest of it: only for statements that wait for nobody, and never for a
 * transaction of several statements. Each sees what those before it did.
 */

import { Kysely, PostgresDialect, type PostgresPool } from 'kysely';
import pg from 'pg';
import { Batch, type BatchStatement } from './batch.ts';
import { clientOptions, type Database, type DatabaseOptions, type Tables } from './database.ts';

/** Statements of one batch at most. */
const batchMax = 64;
/**
 * All of them look up by key. Planned while a table was nearly empty, they would go on reading the whole of it until
 * its statistics are made again, however large it is by then.
 */
const lookUpsOnly = '-c enable_seqscan=off';

/**
 * Opens lazily, like a pool. Close it with `db.destroy()`.
 * @param options `connectionsMax` is a small number: the fewer there are, the more goes together
 */
export function openPipeline(options: DatabaseOptions): Database {
  const lines = Array.from({ length: options.connectionsMax }, () => new Line(options, dispatch));
  let waiting: BatchStatement[] = [];
  let isPlanned = false;

  function dispatch(): void {
    isPlanned = false;
    for (const line of lines) {
      if (!line.isFree || waiting.length === 0) continue;
      const alone = waiting.slice(0, batchMax).findIndex(({ isAlone }) => isAlone);
      // What was refused together goes one by one.
      const count = alone < 0 ? batchMax : Math.max(alone, 1);
      const statements = waiting.slice(0, count);
      waiting = waiting.slice(count);
      line.run(statements, (refused) => waiting.push(...refused));
    }
  }

  const client = {
    query(text: string, values: unknown[] = []): Promise<pg.QueryResult> {
      if (/^(begin|start transaction)\b/.test(text)) {
        throw new Error('a transaction needs a connection of its own');
      }
      return new Promise((resolve, reject) => {
        waiting.push({ text, values, resolve, reject, isAlone: false });
        if (isPlanned) return;
        isPlanned = true;
        setImmediate(dispatch);
      });
    },
    release() {},
  };
  const pool = {
    async connect() {
      return client;
    },
    async end() {
      await Promise.all(lines.map((line) => line.end()));
    },
  };
  // Kysely’s type of a client lists overloads that it never calls; what it calls is here.
  return new Kysely<Tables>({ dialect: new PostgresDialect({ pool: pool as unknown as PostgresPool }) });
}

/** One connection, opened when it is first needed and again when it broke; it carries one batch at a time. */
class Line {
  readonly #options: DatabaseOptions;
  readonly #onFree: () => void;
  #client: pg.Client | null = null;
  #connected: Promise<unknown> = Promise.resolve();
  isFree = true;

  constructor(options: DatabaseOptions, onFree: () => void) {
    this.#options = options;
    this.#onFree = onFree;
  }

  /** @param again is given what was refused together, to be carried out one by one */
  run(statements: BatchStatement[], again: (statements: BatchStatement[]) => void): void {
    this.isFree = false;
    const client = this.#open();
    const batch = new Batch(statements);
    const done = this.#connected.then(() => batch.sendOver(client));
    done
      .then(
        (refused) => again(refused),
        (error: Error) => {
          // Whether it was carried out is not known, and what comes over the connection later is nobody's.
          this.#close(client);
          for (const statement of statements) statement.reject(error);
        },
      )
      .finally(() => {
        this.isFree = true;
        this.#onFree();
      });
  }

  async end(): Promise<void> {
    await this.#client?.end();
  }

  #open(): pg.Client {
    if (this.#client !== null) return this.#client;
    const client = new pg.Client({ ...clientOptions(this.#options), options: lookUpsOnly });
    this.#client = client;
    client.on('error', (error) => {
      if (this.isFree) this.#options.onIdleError?.(error);
      this.#close(client);
    });
    client.on('end', () => this.#close(client));
    this.#connected = client.connect();
    this.#connected.catch(() => this.#close(client));
    return client;
  }

  #close(client: pg.Client): void {
    if (this.#client !== client) return;
    this.#client = null;
    client.end().catch(() => {});
    // The driver's types do not list it.
    (client as unknown as { connection: pg.Connection }).connection.stream.destroy();
  }
}
