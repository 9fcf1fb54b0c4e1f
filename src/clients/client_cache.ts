/**
 * Cache of clients, because every protocol request reads one. The database notifies of changes (channel
 * `client_changed`). The cache is cleared when the connection for notifications was lost.
 *
 * Lookups are work of the server, which gets connections first, and anybody can cause one with an id that no client has. So they share
 * statements, and a flood of such ids leaves the connections to the requests of users.
 */

import { LRUCache } from 'lru-cache';
import { Batcher } from '../database/batcher.ts';
import { asServer, currentUser } from '../database/connection_user.ts';
import { type Database, withResultsWithin } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import { parsedBytesOf } from '../shared/parsed_bytes.ts';
import { type Client, type Created, findClients, isClientId } from './client.ts';
import { type ClientSecret, findClientSecrets } from './client_secret.ts';

/** A client with its secrets. Each change creates a new object. */
export interface CachedClient extends Created {
  client: Client;
  secrets: readonly ClientSecret[];
}

/** Bytes of the cached clients in memory. Anybody can register large ones, and one of those of most apps has some two thousand. */
const cachedBytesMax = 67_108_864;
/** What a client takes besides its metadata and its redirect URIs, in bytes. */
const clientBytes = 1_024;
/** What a lookup may find, as an estimate in bytes: most clients are smaller, a few larger. */
const foundBytes = 16_384;
/** Milliseconds until an entry expires, with and without a connection for notifications. */
const cacheMs = 60_000;
const cacheMsWithoutNotifications = 500;
/** Milliseconds for a lookup. All requests of an app wait for it. */
const lookupMs = 5_000;

export class ClientCache {
  /** By whose request asks first. */
  readonly #lookups: Batcher<string, CachedClient | undefined>;
  readonly #notifications: Notifications;
  readonly #clients = new LRUCache<string, { found: CachedClient; at: number }>({
    maxSize: cachedBytesMax,
    sizeCalculation: ({ found }) => bytesOf(found.client),
  });
  /** Lookups in flight, shared by concurrent requests for the same client. */
  readonly #loading = new Map<string, Promise<CachedClient | undefined>>();

  constructor(db: Database, notifications: Notifications) {
    const lookupDb = withResultsWithin(lookupMs, db);
    this.#lookups = new Batcher({ execute: (ids) => findCached(lookupDb, ids) });
    this.#notifications = notifications;
    notifications.listen('client_changed', {
      onHints: ({ payloads, isCut }) => {
        if (isCut) this.#clear();
        // The next request reads the client again.
        else for (const id of payloads) this.#forget(id);
        return [...payloads].filter((id) => !isClientId(id)).length;
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
    if (!isClientId(id)) return undefined;
    let loading = this.#loading.get(id);
    if (loading === undefined) {
      const owner = currentUser()?.owner ?? '';
      loading = asServer(() => this.#load(id, owner));
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

  async #load(id: string, owner: string): Promise<CachedClient | undefined> {
    // Taken before the query: a change notified during the query removes this promise from the map.
    const at = performance.now();
    let mine: Promise<CachedClient | undefined> | undefined;
    try {
      await Promise.resolve();
      mine = this.#loading.get(id);
      const found = await this.#lookups.add(owner, id, foundBytes);
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

function bytesOf({ metadata, redirectUris }: Client): number {
  return clientBytes + parsedBytesOf(JSON.stringify([metadata, redirectUris]));
}

/** Finds clients that are not disabled, with their secrets. */
async function findCached(
  db: Database,
  ids: readonly string[],
): Promise<PromiseSettledResult<CachedClient | undefined>[]> {
  const clients = new Map<string, Client & Created>();
  for (const client of await findClients(db, ids))
    if (client.disabledAt === null) clients.set(client.id, client);
  const secrets = clients.size === 0 ? [] : await findClientSecrets(db, [...clients.keys()]);
  const byClient = Map.groupBy(secrets, ({ clientId }) => clientId);
  return ids.map((id) => {
    const found = clients.get(id);
    if (found === undefined) return { status: 'fulfilled', value: undefined };
    const { creatorId, ...client } = found;
    return { status: 'fulfilled', value: { client, creatorId, secrets: byClient.get(id) ?? [] } };
  });
}
