/**
 * Notifications: how nodes tell each other that something changed (LISTEN/NOTIFY). One connection listens for
 * the whole process. Channels belong to the whole database, so their names begin with the schema. What was said while it was down is lost, so each listener is also told of a (re)connection
 * and must then reload what it keeps.
 *
 *   connecting → listening → (connection lost) → connecting …
 */

import pg from 'pg';
import { schemaOf, searchPathStatement } from './schema.ts';

/** Milliseconds between tries to listen again after the connection was lost. */
const reconnectPauseMs = 250;
/** Milliseconds between questions to the server whether the connection still lives. */
const heartbeatMs = 5_000;

export interface Listener {
  /** A notification came on the channel. */
  onNotification: (payload: string) => void;
  /** Listening has begun (again): whatever was said before was not heard. */
  onListening?: () => void;
}

export class Notifications {
  readonly #connectionString: string;
  readonly #schema: string;
  readonly #onError: (error: Error) => void;
  readonly #listeners = new Map<string, Set<Listener>>();
  #client: pg.Client | undefined;
  #retry: NodeJS.Timeout | undefined;
  #heartbeat: NodeJS.Timeout | undefined;
  #stopped = false;
  /** Whether somebody was told that it does not listen: once, however often it is tried again. */
  #told = false;

  /** @param onError told when it stops listening, or cannot begin to; not of each try to listen again */
  constructor(connectionString: string, onError: (error: Error) => void) {
    this.#connectionString = connectionString;
    this.#schema = schemaOf(connectionString);
    this.#onError = onError;
  }

  /** Whether the process hears other nodes at this moment. */
  get isListening(): boolean {
    return this.#client !== undefined;
  }

  /**
   * Adds a listener; to be called before `start`.
   * @param channel a plain lower-case identifier; senders write `current_schema() || '.<channel>'`
   */
  listen(channel: string, listener: Listener): void {
    if (!/^[a-z_]{1,22}$/.test(channel)) throw new Error(`not a channel name: ${channel}`);
    const name = `${this.#schema}.${channel}`;
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(listener));
  }

  /** Connects; where that fails it goes on trying in the background. */
  async start(): Promise<void> {
    const client = new pg.Client({
      connectionString: this.#connectionString,
      application_name: 'nuncio notifications',
      keepAlive: true,
      connectionTimeoutMillis: 5_000,
      query_timeout: heartbeatMs,
    });
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
    if (this.#stopped) return void (await client.end());
    this.#client = client;
    this.#told = false;
    this.#heartbeat = setInterval(() => {
      client.query('select 1').catch((error: Error) => this.#lost(client, error));
    }, heartbeatMs);
    this.#heartbeat.unref();
    for (const listeners of this.#listeners.values()) {
      for (const listener of listeners) listener.onListening?.();
    }
  }

  /** Listens over a new connection: the one that there is may lead to a database that is not in use any more. */
  reconnect(): void {
    const client = this.#client;
    if (client !== undefined) this.#lost(client, new Error('the database has begun another epoch'));
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#retry);
    clearInterval(this.#heartbeat);
    const client = this.#client;
    this.#client = undefined;
    await client?.end();
  }

  #lost(client: pg.Client, error: Error): void {
    if (this.#stopped || this.#retry !== undefined) return;
    if (this.#client !== undefined && this.#client !== client) return;
    this.#client = undefined;
    clearInterval(this.#heartbeat);
    client.end().catch(() => {});
    if (!this.#told) this.#onError(error);
    this.#told = true;
    this.#retry = setTimeout(() => {
      this.#retry = undefined;
      void this.start();
    }, reconnectPauseMs);
  }
}
