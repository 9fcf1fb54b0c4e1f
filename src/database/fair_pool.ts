/**
 * Gives out the connections of a pool. All requests of a node share them, and a request keeps one for as long as it waits for a lock. So
 * users have shares (shared/share.ts), what waits gets connections by turns of the users, and work of the server goes first.
 *
 *   asks → holds a connection → gave it back
 *      ↘ waits ↗  ↘ (timeout) refused
 *
 * A user's turn ends when it gives a connection back: then all other users who wait go before it.
 */

import type { PostgresPool, PostgresPoolClient } from 'kysely';
import type pg from 'pg';
import { Bag, BagItem } from '../shared/bag.ts';
import { isFree, reserveOf } from '../shared/share.ts';
import { asServer, type ConnectionUser, currentUser } from './connection_user.ts';

/** A user's share was in use for too long. Other users may still get connections. */
export class ConnectionShareError extends Error {
  override readonly name = 'ConnectionShareError';

  constructor() {
    super('too many requests of this user wait for a database connection');
  }
}

/** A connection in use, from the moment it is promised. */
class Holding extends BagItem {
  readonly user: ConnectionUser | undefined;

  constructor(user: ConnectionUser | undefined) {
    super();
    this.user = user;
  }
}

interface Waiter {
  user: ConnectionUser | undefined;
  timer: NodeJS.Timeout;
  resolve: (client: Promise<PostgresPoolClient>) => void;
}

export class FairPool implements PostgresPool {
  readonly options: object;
  readonly #pool: pg.Pool;
  readonly #size: number;
  readonly #waitMsMax: number;
  readonly #held = new Bag<Holding>();
  readonly #holdings = new WeakMap<pg.PoolClient, Holding>();
  /** By owner; undefined for the server. */
  readonly #waiting = new Map<string | undefined, Set<Waiter>>();
  #acquired = 0;

  /** @param waitMsMax longest wait for a connection in milliseconds */
  constructor(pool: pg.Pool, size: number, waitMsMax: number) {
    this.#pool = pool;
    this.#size = size;
    this.#waitMsMax = waitMsMax;
    this.options = pool.options;
    pool.on('release', (_error, client) => {
      const holding = this.#holdings.get(client);
      if (holding !== undefined) this.#giveBack(holding);
    });
  }

  get acquired(): number {
    return this.#acquired;
  }

  /** What waits because all connections are in use, and not only the waiting user's share of them. */
  get waiting(): number {
    if (this.#held.size < this.#size) return 0;
    return this.#waiting.values().reduce((sum, { size }) => sum + size, 0);
  }

  connect(): Promise<PostgresPoolClient> {
    const user = currentUser();
    return this.#hasRoom(user) ? this.#take(user) : this.#wait(user);
  }

  end(): Promise<void> {
    return this.#pool.end();
  }

  #hasRoom(user: ConnectionUser | undefined): boolean {
    const used = this.#held.size;
    if (used >= this.#size) return false;
    // Nobody can be above its share, whoever has these connections.
    if (user === undefined || used < this.#size - reserveOf(this.#size) - used) return true;
    let own = 0;
    let ofRequest = 0;
    for (const holding of this.#held) {
      if (holding.user?.owner === user.owner) own += 1;
      if (holding.user === user) ofRequest += 1;
    }
    // If requests of one user that hold a connection waited for another one, they could all wait for each other.
    return ofRequest === 1 || isFree(this.#size, used, own);
  }

  async #take(user: ConnectionUser | undefined): Promise<PostgresPoolClient> {
    const holding = new Holding(user);
    this.#held.add(holding);
    try {
      // A new connection outlives the request, and its events are the server's.
      const client = await asServer(() => this.#pool.connect());
      this.#holdings.set(client, holding);
      this.#acquired += 1;
      // The same object. The driver's types name other overloads of `query` than Kysely's.
      return client as unknown as PostgresPoolClient;
    } catch (error) {
      this.#giveBack(holding);
      throw error;
    }
  }

  #wait(user: ConnectionUser | undefined): Promise<PostgresPoolClient> {
    const owner = user?.owner;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#remove(owner, waiter);
        const isOwn = this.#held.size < this.#size;
        // The driver's own message: isDatabaseUnavailable knows it.
        reject(isOwn ? new ConnectionShareError() : new Error('timeout exceeded when trying to connect'));
      }, this.#waitMsMax);
      const waiter: Waiter = { user, timer, resolve };
      const waiting = this.#waiting.get(owner);
      if (waiting === undefined) this.#waiting.set(owner, new Set([waiter]));
      else waiting.add(waiter);
    });
  }

  #remove(owner: string | undefined, waiter: Waiter): void {
    const waiting = this.#waiting.get(owner);
    waiting?.delete(waiter);
    if (waiting?.size === 0) this.#waiting.delete(owner);
  }

  #giveBack(holding: Holding): void {
    this.#held.delete(holding);
    if (this.#waiting.size === 0) return;
    if (holding.user !== undefined) this.#endTurn(holding.user.owner);
    for (let next = this.#next(); next !== undefined; next = this.#next()) {
      clearTimeout(next.timer);
      next.resolve(this.#take(next.user));
    }
  }

  /** Moves an owner that waits behind all others. */
  #endTurn(owner: string): void {
    const waiting = this.#waiting.get(owner);
    if (waiting === undefined) return;
    this.#waiting.delete(owner);
    this.#waiting.set(owner, waiting);
  }

  /** Takes the next waiter that may have a connection: of the server, or of the first owner whose share allows it. */
  #next(): Waiter | undefined {
    if (this.#held.size >= this.#size) return undefined;
    const ofServer = this.#waiting.get(undefined);
    if (ofServer !== undefined) return this.#shift(undefined, ofServer);
    for (const [owner, waiting] of this.#waiting) {
      if (this.#hasRoom(firstOf(waiting).user)) return this.#shift(owner, waiting);
    }
    return undefined;
  }

  #shift(owner: string | undefined, waiting: Set<Waiter>): Waiter {
    const first = firstOf(waiting);
    waiting.delete(first);
    this.#waiting.delete(owner);
    if (waiting.size > 0) this.#waiting.set(owner, waiting);
    return first;
  }
}

/** The oldest of what waits, which is never empty. */
function firstOf(waiting: ReadonlySet<Waiter>): Waiter {
  return waiting.values().next().value as Waiter;
}
