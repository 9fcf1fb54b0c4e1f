/**
 * Cache of clients, because every protocol request reads one. The database notifies of changes (channel
 * `client_changed`). The cache is cleared when the connection for notifications was lost.
 */

import { LRUCache } from 'lru-cache';
import { asServer } from '../database/connection_user.ts';
import { type Database, withResultsWithin } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import { upTo } from '../shared/entries.ts';
import { type Client, findClient } from './client.ts';
import { type ClientSecret, findClientSecrets } from './client_secret.ts';

/** A client with its secrets. Each change creates a new object. */
export interface CachedClient {
  client: Client;
  secrets: readonly ClientSecret[];
}

/** Maximum number of cached clients. */
const clientsMax = 10_000;
/** RFC 6749 appendix A.1; also excludes characters that PostgreSQL rejects. */
const clientId = /^[\x21-\x7e]{1,2048}$/;
/** Milliseconds until an entry expires, with and without a connection for notifications. */
const cacheMs = 60_000;
const cacheMsWithoutNotifications = 500;
/** Milliseconds for a lookup. All requests of an app wait for it. */
const lookupMs = 5_000;

export class ClientCache {
  readonly #db: Database;
  readonly #notifications: Notifications;
  readonly #clients = new LRUCache<string, { found: CachedClient; at: number }>(upTo(clientsMax));
  /** Lookups in flight, shared by concurrent requests for the same client. */
  readonly #loading = new Map<string, Promise<CachedClient | undefined>>();

  constructor(db: Database, notifications: Notifications) {
    this.#db = withResultsWithin(lookupMs, db);
    this.#notifications = notifications;
    notifications.listen('client_changed', {
      onHints: ({ payloads, isCut }) => {
        if (isCut) this.#clear();
        // The next request reads the client again.
        else for (const id of payloads) this.#forget(id);
        return [...payloads].filter((id) => !clientId.test(id)).length;
      },
      onListening: () => this.#clear(),
    });
  }

  /** Finds a client that is neither disabled nor suspended. */
  async find(id: string): Promise<CachedClient | undefined> {
    const found = await this.findIncludingSuspended(id);
    return found?.client.state === 'suspended' ? undefined : found;
  }

  /** Finds a client that is not disabled, for callers that report suspension. */
  async findIncludingSuspended(id: string): Promise<CachedClient | undefined> {
    const cached = this.#clients.get(id);
    const maxAgeMs = this.#notifications.isListening ? cacheMs : cacheMsWithoutNotifications;
    if (cached !== undefined && performance.now() - cached.at < maxAgeMs) return cached.found;
    if (!clientId.test(id)) return undefined;
    let loading = this.#loading.get(id);
    if (loading === undefined) {
      loading = asServer(() => this.#load(id));
      this.#loading.set(id, loading);
    }
    return loading;
  }

  /** Whether the client is cached, at no cost. Almost all apps that send many requests are. */
  isCached(id: string): boolean {
    return this.#clients.has(id);
  }

  /** Removes a client that this node has changed, without waiting for the notification. */
  forget(id: string): void {
    this.#forget(id);
  }

  async #load(id: string): Promise<CachedClient | undefined> {
    // Taken before the query: a change notified during the query removes this promise from the map.
    const at = performance.now();
    let mine: Promise<CachedClient | undefined> | undefined;
    try {
      await Promise.resolve();
      mine = this.#loading.get(id);
      const client = await findClient(this.#db, id);
      const found =
        client === undefined || client.disabledAt !== null
          ? undefined
          : { client, secrets: await findClientSecrets(this.#db, id) };
      if (found !== undefined && this.#loading.get(id) === mine) this.#clients.set(id, { found, at });
      return found;
    } finally {
      if (this.#loading.get(id) === mine) this.#loading.delete(id);
    }
  }

  #clear(): void {
    this.#clients.clear();
    this.#loading.clear();
  }

  #forget(id: string): void {
    this.#clients.delete(id);
    this.#loading.delete(id);
  }
}
