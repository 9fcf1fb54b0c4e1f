/**
 * A collector: work of many requests that shares statements and commits. What comes while a lot is in flight waits and
 * shares the next one. After a pause a lot begins at the end of the running turn of the event loop; under load one begins every
 * few milliseconds, or when it is full.
 *
 * Owners take turns, so that one owner's flood does not delay another's item by more than a lot. Each item has its own
 * result. A lot that the database refuses for its content is split until the item that it refuses is found.
 *
 *   added → waiting → in a lot → settled
 *              │            ↳ (refused) → in each half of the lot → settled
 *              ↳ (too long) → told that the database did not answer
 */

import { connectionTimeoutMs, lateMessage } from './database.ts';

export interface CollectorOptions<Item, Result> {
  /**
   * Carries out a lot in one transaction. Resolves to the outcome of each item, in order. When it rejects, nothing of the
   * lot has been done, or nobody knows.
   */
  execute: (items: readonly Item[]) => Promise<PromiseSettledResult<Result>[]>;
  limits?: Partial<CollectorLimits>;
}

export interface CollectorLimits {
  /** Items and bytes of one lot at most; an item larger than that is a lot by itself. */
  lotItemsMax: number;
  lotBytesMax: number;
  /** Items and bytes that wait at most, of one owner and of all. */
  ownerItemsMax: number;
  ownerBytesMax: number;
  waitingItemsMax: number;
  waitingBytesMax: number;
  /** Lots in flight at most. */
  lotsInFlightMax: number;
  /** Milliseconds from the beginning of a lot to the next one at least, unless that is full: a commit costs more than an item. */
  paceMs: number;
  /** Milliseconds after which a lot counts as slow: the next one no longer waits for it. */
  slowLotMs: number;
  /** Milliseconds that an item waits at most: the same as for a connection of the pool. */
  waitMsMax: number;
}

const usualLimits: CollectorLimits = {
  lotItemsMax: 256,
  lotBytesMax: 4_194_304,
  ownerItemsMax: 2_000,
  ownerBytesMax: 16_777_216,
  waitingItemsMax: 20_000,
  waitingBytesMax: 67_108_864,
  lotsInFlightMax: 4,
  paceMs: 4,
  slowLotMs: 100,
  waitMsMax: connectionTimeoutMs,
};

/** Thrown where too much waits already. */
export class CollectorFullError extends Error {
  override readonly name = 'CollectorFullError';
  /** Whether the owner itself has too much waiting; otherwise it is all owners together. */
  readonly isOwn: boolean;

  constructor(isOwn: boolean) {
    super('too many requests wait for the database');
    this.isOwn = isOwn;
  }
}

interface Waiting<Item, Result> {
  item: Item;
  bytes: number;
  /** When it was added. */
  at: number;
  resolve: (result: Result) => void;
  reject: (error: unknown) => void;
}

/** What waits of one owner, the first first. */
interface Queue<Item, Result> {
  entries: Waiting<Item, Result>[];
  bytes: number;
}

export class Collector<Item, Result> {
  readonly #execute: CollectorOptions<Item, Result>['execute'];
  readonly #limits: CollectorLimits;
  /** By owner; whoever had a turn goes to the end. */
  readonly #queues = new Map<string, Queue<Item, Result>>();
  #items = 0;
  #bytes = 0;
  #inFlight = 0;
  #slow = 0;
  #isScheduled = false;
  /** Until the next lot may begin. */
  #timer: NodeJS.Timeout | undefined;
  #begunAt = Number.NEGATIVE_INFINITY;
  /** Runs while something waits. */
  #expiry: NodeJS.Timeout | undefined;

  constructor({ execute, limits }: CollectorOptions<Item, Result>) {
    this.#execute = execute;
    this.#limits = { ...usualLimits, ...limits };
  }

  /**
   * Adds an item; resolves or rejects with its own outcome.
   * @param owner whose item it is
   * @param bytes what it takes in memory, about
   * @throws CollectorFullError where too much waits
   */
  async add(owner: string, item: Item, bytes: number): Promise<Result> {
    const { ownerItemsMax, ownerBytesMax, waitingItemsMax, waitingBytesMax } = this.#limits;
    const queue = this.#queues.get(owner) ?? { entries: [], bytes: 0 };
    const { length } = queue.entries;
    if (length >= ownerItemsMax || (length > 0 && queue.bytes + bytes > ownerBytesMax))
      throw new CollectorFullError(true);
    if (this.#items >= waitingItemsMax || (this.#items > 0 && this.#bytes + bytes > waitingBytesMax))
      throw new CollectorFullError(false);
    const { promise, resolve, reject } = Promise.withResolvers<Result>();
    queue.entries.push({ item, bytes, at: performance.now(), resolve, reject });
    queue.bytes += bytes;
    this.#queues.set(owner, queue);
    this.#items += 1;
    this.#bytes += bytes;
    this.#schedule();
    this.#expiry ??= setTimeout(() => this.#expire(), this.#limits.waitMsMax);
    return promise;
  }

  /** Nobody may wait for long: who asked may not be allowed to any more by then. */
  #expire(): void {
    const before = performance.now() - this.#limits.waitMsMax;
    for (const [owner, queue] of this.#queues) {
      while (queue.entries[0] !== undefined && queue.entries[0].at <= before)
        this.#shift(owner, queue).reject(new Error(lateMessage));
    }
    const oldest = Math.min(...this.#queues.values().map(({ entries: [first] }) => first?.at ?? 0));
    this.#expiry =
      this.#items === 0 ? undefined : setTimeout(() => this.#expire(), Math.max(oldest - before, 1));
  }

  /** Takes the first item of an owner, who goes to the end. */
  #shift(owner: string, queue: Queue<Item, Result>): Waiting<Item, Result> {
    const first = queue.entries.shift() as Waiting<Item, Result>;
    queue.bytes -= first.bytes;
    this.#bytes -= first.bytes;
    this.#items -= 1;
    this.#queues.delete(owner);
    if (queue.entries.length > 0) this.#queues.set(owner, queue);
    return first;
  }

  #mayBegin(): boolean {
    const isFree = this.#inFlight === this.#slow && this.#inFlight < this.#limits.lotsInFlightMax;
    return isFree && this.#items > 0;
  }

  #schedule(): void {
    if (this.#isScheduled || !this.#mayBegin()) return;
    const waitMs = this.#begunAt + this.#limits.paceMs - performance.now();
    if (waitMs > 0 && this.#items < this.#limits.lotItemsMax) {
      this.#timer ??= setTimeout(() => void this.#begin(), waitMs);
      return;
    }
    this.#isScheduled = true;
    // At the end of the turn: what this turn reads from other connections shares the lot.
    setImmediate(() => void this.#begin());
  }

  async #begin(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isScheduled = false;
    // What waited may have been given up meanwhile.
    if (!this.#mayBegin()) return;
    this.#begunAt = performance.now();
    const lot = this.#takeLot();
    let isSlow = false;
    this.#inFlight += 1;
    const slow = setTimeout(() => {
      isSlow = true;
      this.#slow += 1;
      this.#schedule();
    }, this.#limits.slowLotMs);
    await this.#settle(lot);
    clearTimeout(slow);
    if (isSlow) this.#slow -= 1;
    this.#inFlight -= 1;
    this.#schedule();
  }

  #takeLot(): Waiting<Item, Result>[] {
    const { lotItemsMax, lotBytesMax } = this.#limits;
    const lot: Waiting<Item, Result>[] = [];
    let bytes = 0;
    // A Map gives what was added last at the end, also where that happens during the loop.
    for (const [owner, queue] of this.#queues) {
      const [first] = queue.entries as [Waiting<Item, Result>];
      if (lot.length >= lotItemsMax || (lot.length > 0 && bytes + first.bytes > lotBytesMax)) break;
      lot.push(this.#shift(owner, queue));
      bytes += first.bytes;
    }
    if (this.#items === 0) {
      clearTimeout(this.#expiry);
      this.#expiry = undefined;
    }
    return lot;
  }

  async #settle(lot: readonly Waiting<Item, Result>[]): Promise<void> {
    try {
      const outcomes = await this.#execute(lot.map(({ item }) => item));
      for (const [index, { resolve, reject }] of lot.entries()) {
        const outcome = outcomes[index];
        if (outcome?.status === 'fulfilled') resolve(outcome.value);
        else reject(outcome?.reason ?? new Error('an item has no outcome'));
      }
    } catch (error) {
      if (lot.length > 1 && isRefusal(error)) {
        const middle = lot.length >> 1;
        await this.#settle(lot.slice(0, middle));
        await this.#settle(lot.slice(middle));
      } else {
        for (const { reject } of lot) reject(error);
      }
    }
  }
}

/**
 * Whether the database refused the content: SQLSTATE classes 22 (data exception), 23 (constraint violation) and 54 (limit
 * exceeded). Such a statement has changed nothing, and a part of it may be good.
 */
export function isRefusal(error: unknown): boolean {
  return /^(22|23|54)...$/.test(String((error as { code?: unknown } | null)?.code));
}
