/**
 * Gives out the connections of a pool. All requests of a node share them, and a request keeps one for as long as it waits for a lock. So
 * users have shares (shared/share.ts), and so have the apps of an account; what waits gets connections by turns of the users, and work of the server goes first.
 *
 *   asks → holds a connection → gave it back
 *      ↘ waits ↗  ↘ (timeout) refused
 *
 * The purposes take turns. The turns of each purpose are shared fairly (shared/fair_time.ts), so that the accounts of an app have no more of them than four
 * others. They are not shared across purposes, because what others read says nothing about whoever changes something. The length of a turn does not
 * count: it may be that of a wait for rows that somebody else has locked. Of the apps of an account, that goes first that holds fewest.
 * In a pool of few connections and long statements, turns do not help: a dozen users with such statements would make each short one wait for a
 * dozen of theirs. There, time is shared. Work in a turn comes when whoever waits for the end of the turn would.
 *
 * Many users who change locked rows could still hold all connections, each with one. So changes, and those that end rights, leave some to
 * reads and to each other, and all of these leave some to what goes first.
 */

import type { PostgresPool, PostgresPoolClient } from 'kysely';
import type pg from 'pg';
import { Bag, BagItem } from '../shared/bag.ts';
import { FairTime, type TimeOwner } from '../shared/fair_time.ts';
import { freeInGroup, isFree, isFreeForAnybody } from '../shared/share.ts';
import { asServer, type ConnectionUser, currentUser, type Purpose, purposeOf } from './connection_user.ts';

/** Of so many connections, one is kept free for each purpose from those that come after it. */
const perReserved = 8;

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
  readonly since = performance.now();

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

type Queued = [queue: string | undefined, Waiter];

export class FairPool implements PostgresPool {
  readonly options: object;
  readonly #pool: pg.Pool;
  readonly #size: number;
  /** How many connections users may hold together for a purpose. Those for reads are also for all that comes after them. */
  readonly #limits: Readonly<Record<Purpose, number>>;
  /** How many users may hold together for changes and for those that end rights: what may wait for rows. */
  readonly #changesMax: number;
  readonly #waitMsMax: number;
  readonly #held = new Bag<Holding>();
  readonly #holdings = new WeakMap<pg.PoolClient, Holding>();
  /** By owner and purpose; undefined for the server. */
  readonly #waiting = new Map<string | undefined, Set<Waiter>>();
  /** Connections that are not known to work since another one fell silent are not used any more. */
  #known = new WeakSet<pg.PoolClient>();
  #acquired = 0;
  readonly #times: Readonly<Record<Purpose, FairTime>>;
  /** The one that had no turn for longest is first. */
  readonly #order: Set<FairTime>;
  readonly #isByTime: boolean;

  /**
   * @param waitMsMax longest wait for a connection in milliseconds
   * @param isByTime whether owners share the time in place of the turns
   */
  constructor(pool: pg.Pool, size: number, waitMsMax: number, isByTime = false) {
    this.#isByTime = isByTime;
    const time = new FairTime();
    const create = () => (isByTime ? time : new FairTime(true));
    this.#times = { first: create(), read: create(), right: create(), change: create() };
    this.#order = new Set(Object.values(this.#times));
    this.#pool = pool;
    this.#size = size;
    const reserved = Math.floor(size / perReserved);
    this.#changesMax = size - 2 * reserved;
    // Each kind leaves the other some, too.
    const changes = size - 3 * reserved;
    this.#limits = { first: size, read: size - reserved, right: changes, change: changes };
    this.#waitMsMax = waitMsMax;
    this.options = pool.options;
    pool.on('connect', (client) => this.#known.add(client));
    pool.on('release', (_error, client) => {
      const holding = this.#holdings.get(client);
      if (holding === undefined) return;
      this.#holdings.delete(client);
      this.#giveBack(holding);
    });
  }

  #timesOf(user: ConnectionUser): FairTime {
    return this.#times[purposeOf(user)];
  }

  get acquired(): number {
    return this.#acquired;
  }

  /** What waits because all connections are in use, and not only the waiting user's share of them, or those that changes may have. */
  get waiting(): number {
    if (this.#held.size < this.#limits.read) return 0;
    const areFull = { first: this.#isFull('first'), read: this.#isFull('read') };
    return this.#waiting.values().reduce((sum, waiting) => {
      const { user } = firstOf(waiting);
      const purpose = user === undefined ? 'first' : purposeOf(user);
      return areFull[purpose === 'first' ? 'first' : 'read'] ? sum + waiting.size : sum;
    }, 0);
  }

  connect(): Promise<PostgresPoolClient> {
    const user = currentUser();
    if (!this.#hasRoom(user)) return this.#wait(user);
    if (user !== undefined) this.#timesOf(user).begin(ownerOf(user));
    return this.#take(user);
  }

  /** A connection fell silent, and others may have, too: those that are idle now are closed when their turn comes. */
  suspectAll(): void {
    this.#known = new WeakSet();
  }

  end(): Promise<void> {
    return this.#pool.end();
  }

  #hasRoom(user: ConnectionUser | undefined): boolean {
    const { size } = this.#held;
    if (size >= this.#size) return false;
    if (user === undefined) return true;
    const purpose = purposeOf(user);
    const limit = this.#limits[purpose];
    // Nobody can be above its share, whoever has these connections.
    if (isFreeForAnybody(limit, size)) return true;
    let used = 0;
    let own = 0;
    let ofPart = 0;
    let ofRequest = 0;
    for (const holding of this.#held) {
      if (holding.user === user) ofRequest += 1;
      if (!countsFor(purpose, holding)) continue;
      used += 1;
      if (holding.user?.owner !== user.owner) continue;
      own += 1;
      if (holding.user.part === user.part) ofPart += 1;
    }
    // If requests of one user that hold a connection waited for another one, they could all wait for each other.
    if (ofRequest === 1) return true;
    const isInShare =
      user.part === null ? isFree(limit, used, own) : freeInGroup(limit, used, own, ofPart) > 0;
    return isInShare && !this.#isFull(purpose);
  }

  /** Whether all connections are in use that users may have for a purpose, whoever has them. */
  #isFull(purpose: Purpose): boolean {
    if (this.#held.size >= this.#size) return true;
    let used = 0;
    let changes = 0;
    for (const holding of this.#held) {
      if (countsFor(purpose, holding)) used += 1;
      if (countsFor('right', holding) || countsFor('change', holding)) changes += 1;
    }
    if (used >= this.#limits[purpose]) return true;
    if (purpose === 'first' || purpose === 'read') return false;
    return changes >= this.#changesMax || this.#isFull('read');
  }

  async #take(user: ConnectionUser | undefined): Promise<PostgresPoolClient> {
    const holding = new Holding(user);
    this.#held.add(holding);
    if (user !== undefined && !this.#isByTime) this.#timesOf(user).add(ownerOf(user), 1);
    try {
      // A new connection outlives the request, and its events are the server's.
      let client = await asServer(() => this.#pool.connect());
      while (!this.#known.has(client)) {
        client.release(true);
        client = await asServer(() => this.#pool.connect());
      }
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
    const queue = user && queueOf(user.owner, purposeOf(user));
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#remove(queue, waiter);
        const isOwn = !this.#isFull(user === undefined ? 'first' : purposeOf(user));
        // The driver's own message: isDatabaseUnavailable knows it.
        reject(isOwn ? new ConnectionShareError() : new Error('timeout exceeded when trying to connect'));
      }, this.#waitMsMax);
      const waiter: Waiter = { user, timer, resolve };
      const waiting = this.#waiting.get(queue);
      if (waiting === undefined) this.#waiting.set(queue, new Set([waiter]));
      else waiting.add(waiter);
    });
  }

  #remove(queue: string | undefined, waiter: Waiter): void {
    const waiting = this.#waiting.get(queue);
    waiting?.delete(waiter);
    if (waiting?.size === 0) this.#waiting.delete(queue);
  }

  #giveBack(holding: Holding): void {
    this.#held.delete(holding);
    const { user, since } = holding;
    if (user !== undefined && this.#isByTime)
      this.#timesOf(user).add(ownerOf(user), performance.now() - since);
    if (this.#waiting.size === 0) return;
    for (let next = this.#next(); next !== undefined; next = this.#next()) {
      clearTimeout(next.timer);
      next.resolve(this.#take(next.user));
    }
  }

  /** Takes the next waiter that may have a connection: of the server, or of the next owner whose share allows it. */
  #next(): Waiter | undefined {
    if (this.#held.size >= this.#size) return undefined;
    const ofServer = this.#waiting.get(undefined);
    if (ofServer !== undefined) return this.#shift(undefined, firstOf(ofServer));
    const next = this.#nextOfUsers();
    return next && this.#shift(...next);
  }

  #nextOfUsers(): Queued | undefined {
    for (const times of this.#order) {
      const next = this.#nextOf(times);
      if (next === undefined) continue;
      this.#order.delete(times);
      this.#order.add(times);
      return next;
    }
    return undefined;
  }

  #nextOf(times: FairTime): Queued | undefined {
    const candidates = [...this.#mayBegin(times)].map(([queue, waiter, user]) => ({
      queued: [queue, waiter] satisfies Queued,
      owners: thoseWhoWaitFor(user),
    }));
    // Not those who wait for the end of a turn: they may do so for long, however little of this they use.
    times.catchUp(candidates.flatMap(({ owners }) => owners.slice(0, 1)));
    let next: Queued | undefined;
    let least = Number.POSITIVE_INFINITY;
    for (const { queued, owners } of candidates) {
      const place = Math.min(...owners.map((each) => times.placeOf(each)));
      if (place < least) [next, least] = [queued, place];
    }
    return next;
  }

  /**
   * The oldest waiter of each app of each owner that may have a connection. Those whose share is used up do not count: what others have meanwhile
   * would never be forgotten.
   */
  *#mayBegin(times: FairTime): Generator<[...Queued, ConnectionUser], undefined> {
    for (const [queue, waiting] of this.#waiting) {
      // What waits for the server is taken before.
      const { user: first } = firstOf(waiting);
      if (first === undefined || this.#timesOf(first) !== times) continue;
      for (const waiter of this.#firstsOf(waiting)) {
        const { user } = waiter;
        if (user !== undefined && this.#hasRoom(user)) yield [queue, waiter, user];
      }
    }
  }

  /** The oldest waiter of each app of an owner. First are those of apps that hold fewest connections. */
  #firstsOf(waiting: ReadonlySet<Waiter>): Waiter[] {
    const firsts = new Map<string | null, Waiter>();
    for (const waiter of waiting) {
      const part = partOf(waiter);
      if (!firsts.has(part)) firsts.set(part, waiter);
    }
    if (firsts.size === 1) return [...firsts.values()];
    const held = Map.groupBy(this.#held, partOf);
    const heldBy = (waiter: Waiter) => held.get(partOf(waiter))?.length ?? 0;
    return [...firsts.values()].sort((one, other) => heldBy(one) - heldBy(other));
  }

  #shift(queue: string | undefined, next: Waiter): Waiter {
    const waiting = this.#waiting.get(queue) ?? new Set();
    this.#waiting.delete(queue);
    waiting.delete(next);
    if (waiting.size > 0) this.#waiting.set(queue, waiting);
    return next;
  }
}

/** Whether a connection in use is one of those that users may hold for a purpose. */
function countsFor(purpose: Purpose, { user }: Holding): boolean {
  if (purpose === 'first') return true;
  if (user === undefined) return false;
  return purpose === 'read' ? purposeOf(user) !== 'first' : purposeOf(user) === purpose;
}

function partOf({ user }: { readonly user: ConnectionUser | undefined }): string | null {
  return user?.part ?? null;
}

/** Whose time it is. */
function ownerOf(user: ConnectionUser): TimeOwner {
  return user.turn?.user ?? user;
}

function thoseWhoWaitFor(user: ConnectionUser): TimeOwner[] {
  return [ownerOf(user), ...(user.turn?.waiting() ?? [])];
}

function queueOf(owner: string, purpose: Purpose): string {
  return `${purpose} ${owner}`;
}

/** The oldest of what waits, which is never empty. */
function firstOf(waiting: ReadonlySet<Waiter>): Waiter {
  return waiting.values().next().value as Waiter;
}
