/**
 * Notifications between nodes (LISTEN/NOTIFY). One connection listens for the whole process. Channel names begin with the
 * schema, because channels belong to the whole database. Notifications are lost while the connection is down. Each listener
 * is therefore told when listening begins (again), and must then reload its state. Other roles of the database can send
 * notifications too, so their content is only a hint (hints.ts).
 *
 *   connecting → listening → (connection lost) → connecting …
 */

import pg from 'pg';
import { type HintListener, HintQueue } from './hints.ts';
import { schemaOf, searchPathStatement } from './schema.ts';

/** Pause between reconnection attempts. */
const reconnectPauseMs = 250;
/** Milliseconds for an orderly end of the connection. */
const endMsMax = 1_000;
/** Interval between checks of the connection. */
const heartbeatMs = 5_000;
/**
 * Share of PostgreSQL's notification queue from which on this connection counts as lost. A session that listens and stays in a
 * transaction fills the queue for the whole server. The database sends no notifications above twice this share (`announce`).
 */
const queueShareMax = 0.25;

export class Notifications {
  readonly #connectionString: string;
  readonly #schema: string;
  readonly #onError: (error: Error) => void;
  readonly #onFalseHints: (channel: string, count: number) => void;
  readonly #listeners = new Map<string, { queue: HintQueue; listener: HintListener }[]>();
  /** The only client: it connects or listens. Undefined during the pause after a lost connection. */
  #client: pg.Client | undefined;
  #isListening = false;
  /** Whether the server's queue has room, so that no notification is left out. */
  #hasRoom = true;
  #retry: NodeJS.Timeout | undefined;
  #heartbeat: NodeJS.Timeout | undefined;
  #stopped = false;
  /** Whether the current outage has been reported. */
  #isReported = false;

  /**
   * @param onError called once per outage, not for each reconnection attempt, and when a listener fails
   * @param onFalseHints called when a listener found that hints were false
   */
  constructor(
    connectionString: string,
    onError: (error: Error) => void,
    onFalseHints: (channel: string, count: number) => void = () => {},
  ) {
    this.#connectionString = connectionString;
    this.#schema = schemaOf(connectionString);
    this.#onError = onError;
    this.#onFalseHints = onFalseHints;
  }

  /** Whether the process currently receives every notification. */
  get isListening(): boolean {
    return this.#isListening && this.#hasRoom;
  }

  /**
   * Adds a listener. Call this before `start`.
   * @param channel lower-case letters and underscores; senders call the SQL function `announce`
   */
  listen(channel: string, listener: HintListener): void {
    if (!/^[a-z_]{1,22}$/.test(channel)) throw new Error(`not a channel name: ${channel}`);
    const queue = new HintQueue(listener, (count) => this.#onFalseHints(channel, count), this.#onError);
    const name = `${this.#schema}.${channel}`;
    const listeners = this.#listeners.get(name) ?? [];
    this.#listeners.set(name, [...listeners, { queue, listener }]);
  }

  /** Connects. If that fails, it retries in the background. */
  async start(): Promise<void> {
    if (this.#stopped || this.#client !== undefined) return;
    const client = new pg.Client({
      connectionString: this.#connectionString,
      application_name: 'nuncio notifications',
      keepAlive: true,
      connectionTimeoutMillis: 5_000,
      query_timeout: heartbeatMs,
    });
    this.#client = client;
    client.on('error', (error) => this.#lost(client, error));
    client.on('end', () => this.#lost(client, new Error('the connection ended')));
    client.on('notification', ({ channel, payload }) => {
      for (const { queue } of this.#listeners.get(channel) ?? []) queue.add(payload ?? '');
    });
    try {
      await client.connect();
      await client.query(searchPathStatement(this.#connectionString));
      for (const channel of this.#listeners.keys()) await client.query(`listen "${channel}"`);
    } catch (error) {
      this.#lost(client, error as Error);
      return;
    }
    // The connection was replaced or stopped meanwhile.
    if (this.#client !== client) return;
    this.#isListening = true;
    this.#isReported = false;
    this.#heartbeat = setInterval(() => {
      this.#checkQueue(client).catch((error: Error) => this.#lost(client, error));
    }, heartbeatMs);
    this.#heartbeat.unref();
    this.#catchUp();
  }

  /** Earlier notifications may be lost. */
  #catchUp(): void {
    for (const { listener } of [...this.#listeners.values()].flat()) listener.onListening?.();
  }

  async #checkQueue(client: pg.Client): Promise<void> {
    const { rows } = await client.query<{ usage: number }>('select pg_notification_queue_usage() as usage');
    const usage = rows[0]?.usage ?? 0;
    const hasRoom = usage < queueShareMax;
    if (this.#hasRoom && !hasRoom) {
      this.#onError(
        new Error(
          `PostgreSQL's notification queue is ${Math.round(usage * 100)} % full: a session listens within a long transaction`,
        ),
      );
    }
    // Since the last check, the database may have left notifications out.
    const mayHaveLost = !this.#hasRoom || !hasRoom;
    this.#hasRoom = hasRoom;
    if (mayHaveLost) this.#catchUp();
  }

  /** Reconnects, because the current connection may lead to a former primary. */
  reconnect(): void {
    const client = this.#client;
    if (client === undefined || !this.#isListening) return;
    this.#lost(client, new Error('the database has begun another epoch'));
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#retry);
    for (const { queue } of [...this.#listeners.values()].flat()) queue.stop();
    const client = this.#client;
    this.#forget();
    if (client === undefined) return;
    const timer = setTimeout(() => client.connection.stream.destroy(), endMsMax);
    await client.end();
    clearTimeout(timer);
  }

  /** Only the current client can be lost: the end of an earlier one may be reported late. */
  #lost(client: pg.Client, error: Error): void {
    if (this.#client !== client) return;
    this.#forget();
    client.end().catch(() => {});
    // A server that does not respond would keep the connection, and the process, alive.
    client.connection.stream.destroy();
    if (!this.#isReported) this.#onError(error);
    this.#isReported = true;
    this.#retry = setTimeout(() => void this.start(), reconnectPauseMs);
  }

  #forget(): void {
    clearInterval(this.#heartbeat);
    this.#client = undefined;
    this.#isListening = false;
  }
}
