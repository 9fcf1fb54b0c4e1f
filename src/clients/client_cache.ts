/**
 * Clients in memory: every protocol request begins with a look at one. The database tells of changes
 * (channel `client_changed`); what was said while nobody listened is made good by forgetting everything.
 */

import { LRUCache } from 'lru-cache';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import { type Client, findClient } from './client.ts';
import { type ClientSecret, findClientSecrets } from './client_secret.ts';

/** A client with what it is recognised by. A new object whenever something of it changed. */
export interface CachedClient {
  client: Client;
  secrets: readonly ClientSecret[];
}

/** Clients kept at most. */
const clientsMax = 10_000;
/** Milliseconds that one is believed while notifications are heard, and while they are not. */
const trustMs = 60_000;
const trustUnheardMs = 500;

export class ClientCache {
  readonly #db: Database;
  readonly #notifications: Notifications;
  readonly #clients = new LRUCache<string, { found: CachedClient; at: number }>({ max: clientsMax });
  /** Look-ups under way, so that many requests for one client ask once. */
  readonly #loading = new Map<string, Promise<CachedClient | undefined>>();

  constructor(db: Database, notifications: Notifications) {
    this.#db = db;
    this.#notifications = notifications;
    notifications.listen('client_changed', {
      onNotification: (id) => this.#forget(id),
      onListening: () => {
        this.#clients.clear();
        this.#loading.clear();
      },
    });
  }

  /** A client that may be used: disabled and suspended ones are not found. */
  async find(id: string): Promise<CachedClient | undefined> {
    const found = await this.findIncludingSuspended(id);
    return found?.client.state === 'suspended' ? undefined : found;
  }

  /** A client that is not disabled: for whoever says why a suspended one may not be used. */
  async findIncludingSuspended(id: string): Promise<CachedClient | undefined> {
    const cached = this.#clients.get(id);
    const trusted = this.#notifications.isListening ? trustMs : trustUnheardMs;
    if (cached !== undefined && performance.now() - cached.at < trusted) return cached.found;
    // RFC 6749 appendix A.1, and what the database can be asked for.
    if (!/^[\x21-\x7e]{1,2048}$/.test(id)) return undefined;
    let loading = this.#loading.get(id);
    if (loading === undefined) {
      loading = this.#load(id);
      this.#loading.set(id, loading);
    }
    return loading;
  }

  /** For the node that changed one itself: its next look sees the change. */
  forget(id: string): void {
    this.#forget(id);
  }

  async #load(id: string): Promise<CachedClient | undefined> {
    // Taken before the look-up: a change that is told of meanwhile takes this promise out of the map.
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

  #forget(id: string): void {
    this.#clients.delete(id);
    this.#loading.delete(id);
  }
}
