/**
 * Notifications between nodes (LISTEN/NOTIFY). One connection listens for the whole process. Channel names begin with the
 * schema, because channels belong to the whole database. Notifications are lost while the connection is down. Each listener
 * is therefore told when listening begins (again), and must then reload its state.
 *
 *   connecting → listening → (connection lost) → connecting …
 */

import pg from 'pg';
import { schemaOf, searchPathStatement } from './schema.ts';

/** Pause between reconnection attempts. */
const reconnectPauseMs = 250;
/** Milliseconds for an orderly end of the connection. */
const endMsMax = 1_000;
/** Interval between checks of the connection. */
const heartbeatMs = 5_000;

export interface Listener {
  onNotification: (payload: string) => void;
  /** Listening has begun (again). Earlier notifications may be lost. */
  onListening?: () => void;
}

export class Notifications {
  readonly #connectionString: string;
  readonly #schema: string;
  readonly #onError: (error: Error) => void;
  readonly #listeners = new Map<string, Set<Listener>>();
  /** The only client: it connects or listens. Undefined during the pause after a lost connection. */
  #client: pg.Client | undefined;
  #isListening = false;
  #retry: NodeJS.Timeout | undefined;
  #heartbeat: NodeJS.Timeout | undefined;
  #stopped = false;
  /** Whether the current outage has been reported. */
  #isReported = false;

  /** @param onError called once per outage, not for each reconnection attempt */
  constructor(connectionString: string, onError: (error: Error) => void) {
    this.#connectionString = connectionString;
    this.#schema = schemaOf(connectionString);
    this.#onError = onError;
  }

  /** Whether the process currently receives notifications. */
  get isListening(): boolean {
    return this.#isListening;
  }

  /**
   * Adds a listener. Call this before `start`.
   * @param channel lower-case letters and underscores; senders notify `current_schema() || '.<channel>'`
   */
  listen(channel: string, listener: Listener): void {
    if (!/^[a-z_]{1,22}$/.test(channel)) throw new Error(`not a channel name: ${channel}`);
    const name = `${this.#schema}.${channel}`;
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(listener));
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
      for (const listener of this.#listeners.get(channel) ?? []) listener.onNotification(payload ?? '');
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
      client.query('select 1').catch((error: Error) => this.#lost(client, error));
    }, heartbeatMs);
    this.#heartbeat.unref();
    for (const listeners of this.#listeners.values()) {
      for (const listener of listeners) listener.onListening?.();
    }
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
