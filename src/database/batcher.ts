/**
 * A batcher joins work of many requests, so that they share statements and commits. Items that arrive while a batch is
 * in flight wait for the next batch, so batches grow with the load. A batch starts at the end of a turn of the event loop. It does
 * not wait for more items: that made no batch cheaper, and 32 connections a fifth slower.
 *
 * Owners take turns, and so do the parts of an owner, such as the apps of an account: a flood of one owner delays an item of another by at most
 * one batch, of which it has a share. Each item gets its own result.
 * When the database rejects a batch because of its content, the batcher splits the batch until it finds whose item is bad. The items of that owner wait
 * again, and each of them is a batch of its own for a while, so that it can repeat this for nobody else. Any other error is that of all items
 * of the batch.
 *
 *   added → waiting → in a batch → settled
 *            │  ↑            ↳ (rejected, of several owners) → in each half of the batch → …
 *            │  └───────────── (rejected, several items of one owner)
 *            ↳ (timeout) → rejected: the database did not respond
 */

import { OwnerTurns, type Sharer, undivided } from '../shared/owner_turns.ts';
import { freeOf, isFree } from '../shared/share.ts';
import { asServer } from './connection_user.ts';
import { connectionTimeoutMs, DatabaseTimeoutError } from './database.ts';

export interface BatcherOptions<Item, Result> {
  /**
   * Executes a batch in one transaction. Resolves to the outcome of each item, in order. If it rejects, the batch was rolled
   * back or its outcome is unknown.
   */
  execute: (items: readonly Item[]) => Promise<PromiseSettledResult<Result>[]>;
  limits?: Partial<BatcherLimits>;
}

export interface BatcherLimits {
  /** Size of a batch. A larger item forms a batch of its own. */
  batchItemsMax: number;
  batchBytesMax: number;
  /** Bytes of a batch that are of one owner while others wait. A single item may be larger. */
  batchOwnerBytesMax: number;
  /** Waiting items and bytes, per owner and in total, of which owners have shares. A part of an owner may have half of the owner's. */
  ownerItemsMax: number;
  ownerBytesMax: number;
  waitingItemsMax: number;
  waitingBytesMax: number;
  batchesInFlightMax: number;
  /** After this time a batch counts as slow, and the next one no longer waits for it. */
  slowBatchMs: number;
  /** Longest wait of an item. Same as the timeout for a connection of the pool. */
  waitMsMax: number;
  /** How long each item of an owner is a batch of its own after one that the database rejected. */
  suspectMs: number;
}

const defaultLimits: BatcherLimits = {
  batchItemsMax: 256,
  // Larger batches of large items are no faster, and every item waits for the whole of its batch.
  batchBytesMax: 1_048_576,
  batchOwnerBytesMax: 262_144,
  ownerItemsMax: 2_000,
  ownerBytesMax: 16_777_216,
  waitingItemsMax: 20_000,
  waitingBytesMax: 67_108_864,
  batchesInFlightMax: 4,
  slowBatchMs: 100,
  waitMsMax: connectionTimeoutMs,
  suspectMs: 10_000,
};

const partKey = ({ owner, part }: Sharer) => `${owner} ${part}`;

/** Too many items are waiting. */
export class BatcherFullError extends Error {
  override readonly name = 'BatcherFullError';
  /** Whether the owner's own limit was reached, rather than the limit of all owners. */
  readonly isOwn: boolean;

  constructor(isOwn: boolean) {
    super('too many requests wait for the database');
    this.isOwn = isOwn;
  }
}

interface Waiting<Item, Result> {
  sharer: Sharer;
  item: Item;
  bytes: number;
  addedAt: number;
  resolve: (result: Result) => void;
  reject: (error: unknown) => void;
}

export class Batcher<Item, Result> {
  readonly #execute: BatcherOptions<Item, Result>['execute'];
  readonly #limits: BatcherLimits;
  readonly #turns = new OwnerTurns<Waiting<Item, Result>>();
  /** Waiting bytes of owners, and of their parts. */
  readonly #owned = new Map<string, number>();
  /** Owners of items that the database rejected, and until when they count as such. In this order. */
  readonly #suspects = new Map<string, number>();
  /** Whether the last batch was a suspect's. */
  #wasSuspect = false;
  #items = 0;
  #bytes = 0;
  #inFlight = 0;
  #slow = 0;
  #isScheduled = false;
  /** Runs while an item waits. */
  #expiry: NodeJS.Timeout | undefined;

  constructor({ execute, limits }: BatcherOptions<Item, Result>) {
    this.#execute = execute;
    this.#limits = { ...defaultLimits, ...limits };
  }

  /**
   * Adds an item. Resolves or rejects with the outcome of that item.
   * @param owner whose turns it takes, or also which part of it
   * @param bytes approximate size in memory
   * @throws BatcherFullError when too many items are waiting
   */
  async add(owner: string | Sharer, item: Item, bytes: number): Promise<Result> {
    const sharer = typeof owner === 'string' ? undivided(owner) : owner;
    if (this.#isOwnFull(sharer, bytes)) throw new BatcherFullError(true);
    if (this.#isFull(sharer, bytes)) throw new BatcherFullError(false);
    const { promise, resolve, reject } = Promise.withResolvers<Result>();
    this.#enqueue({ sharer, item, bytes, addedAt: performance.now(), resolve, reject });
    this.#schedule();
    return promise;
  }

  #enqueue(waiting: Waiting<Item, Result>): void {
    const { sharer, bytes } = waiting;
    this.#turns.add(sharer.owner, waiting, sharer.part);
    this.#count(sharer, bytes);
    this.#items += 1;
    this.#expiry ??= setTimeout(() => this.#expire(), this.#limits.waitMsMax);
  }

  /** Whether all owners together have as much waiting as leaves the owner nothing. Part is reserved for those that have nothing. */
  #isFull({ owner }: Sharer, bytes: number): boolean {
    const { waitingItemsMax, waitingBytesMax } = this.#limits;
    if (!isFree(waitingItemsMax, this.#items, this.#turns.countOf(owner))) return true;
    return this.#items > 0 && bytes > freeOf(waitingBytesMax, this.#bytes, this.#bytesOf(owner));
  }

  /** Whether the owner, or the part of it, has as much waiting as it may. */
  #isOwnFull(sharer: Sharer, bytes: number): boolean {
    const { ownerItemsMax, ownerBytesMax } = this.#limits;
    const count = this.#turns.countOf(sharer.owner);
    const isFull =
      count >= ownerItemsMax || (count > 0 && this.#bytesOf(sharer.owner) + bytes > ownerBytesMax);
    if (isFull || sharer.part === null) return isFull;
    const ofPart = this.#turns.countOfPart(sharer);
    const partBytes = this.#bytesOf(partKey(sharer)) + bytes;
    return ofPart >= ownerItemsMax / 2 || (ofPart > 0 && partBytes > ownerBytesMax / 2);
  }

  #count(sharer: Sharer, bytes: number): void {
    this.#bytes += bytes;
    for (const key of sharer.part === null ? [sharer.owner] : [sharer.owner, partKey(sharer)]) {
      const sum = this.#bytesOf(key) + bytes;
      if (sum === 0) this.#owned.delete(key);
      else this.#owned.set(key, sum);
    }
  }

  #bytesOf(key: string): number {
    return this.#owned.get(key) ?? 0;
  }

  /** Rejects items that waited too long. The request may have lost its permission in the meantime. */
  #expire(): void {
    const before = performance.now() - this.#limits.waitMsMax;
    for (const late of this.#turns.takeIf(({ addedAt }) => addedAt <= before)) {
      this.#forget(late);
      late.reject(new DatabaseTimeoutError());
    }
    const oldest = Math.min(...[...this.#turns.firsts()].map(([, { addedAt }]) => addedAt));
    this.#expiry =
      this.#items === 0 ? undefined : setTimeout(() => this.#expire(), Math.max(oldest - before, 1));
  }

  #forget({ sharer, bytes }: Waiting<Item, Result>): void {
    this.#count(sharer, -bytes);
    this.#items -= 1;
  }

  #mayStart(): boolean {
    const isFree = this.#inFlight === this.#slow && this.#inFlight < this.#limits.batchesInFlightMax;
    return isFree && this.#items > 0;
  }

  #schedule(): void {
    if (this.#isScheduled || !this.#mayStart()) return;
    this.#isScheduled = true;
    // Start at the end of the turn, so that requests read in this turn share the batch.
    asServer(() => setImmediate(() => void this.#startBatch()));
  }

  async #startBatch(): Promise<void> {
    this.#isScheduled = false;
    // The waiting items may have expired.
    if (!this.#mayStart()) return;
    const batch = this.#takeBatch(this.#wasSuspect);
    this.#wasSuspect = this.#isSuspect((batch[0] as Waiting<Item, Result>).sharer.owner);
    let isSlow = false;
    this.#inFlight += 1;
    const slow = setTimeout(() => {
      isSlow = true;
      this.#slow += 1;
      this.#schedule();
    }, this.#limits.slowBatchMs);
    await this.#settle(batch);
    clearTimeout(slow);
    if (isSlow) this.#slow -= 1;
    this.#inFlight -= 1;
    this.#schedule();
  }

  /** @param isOfOthers whether it is the turn of those that are no suspects, if any of them waits */
  #takeBatch(isOfOthers: boolean): Waiting<Item, Result>[] {
    const { batchItemsMax, batchBytesMax, batchOwnerBytesMax } = this.#limits;
    const batch: Waiting<Item, Result>[] = [];
    const isShared = this.#turns.ownerCount > 1;
    const owned = new Map<string, number>();
    let bytes = 0;
    // An owner comes again after all others, unless it has had its share.
    for (const owner of this.#turns.owners()) {
      const isSuspect = this.#isSuspect(owner);
      if (isSuspect && (isOfOthers || batch.length > 0)) continue;
      const first = this.#turns.firstOf(owner) as Waiting<Item, Result>;
      const own = (owned.get(owner) ?? 0) + first.bytes;
      if (isShared && owned.has(owner) && own > batchOwnerBytesMax) continue;
      if (batch.length >= batchItemsMax || (batch.length > 0 && bytes + first.bytes > batchBytesMax)) break;
      this.#turns.takeOf(owner);
      this.#forget(first);
      batch.push(first);
      bytes += first.bytes;
      owned.set(owner, own);
      if (isSuspect) break;
    }
    if (batch.length === 0) return this.#takeBatch(false);
    if (this.#items === 0) {
      clearTimeout(this.#expiry);
      this.#expiry = undefined;
    }
    return batch;
  }

  async #settle(batch: readonly Waiting<Item, Result>[]): Promise<void> {
    try {
      const outcomes = await this.#execute(batch.map(({ item }) => item));
      for (const [index, { resolve, reject }] of batch.entries()) {
        const outcome = outcomes[index];
        if (outcome?.status === 'fulfilled') resolve(outcome.value);
        else reject(outcome?.reason ?? new Error('an item has no outcome'));
      }
    } catch (error) {
      if (isRejection(error)) await this.#divide(batch, error);
      else for (const { reject } of batch) reject(error);
    }
  }

  /** Finds out whose items the database rejected. */
  async #divide(batch: readonly Waiting<Item, Result>[], error: unknown): Promise<void> {
    const lines = [...Map.groupBy(batch, ({ sharer }) => sharer.owner)];
    if (lines.length > 1) {
      const middle = lines.length >> 1;
      for (const half of [lines.slice(0, middle), lines.slice(middle)])
        await this.#settle(half.flatMap(([, line]) => line));
      return;
    }
    for (const [owner] of lines) this.#suspect(owner);
    if (batch.length === 1) for (const { reject } of batch) reject(error);
    else for (const waiting of batch) this.#enqueue(waiting);
  }

  #suspect(owner: string): void {
    const now = performance.now();
    this.#suspects.delete(owner);
    this.#suspects.set(owner, now + this.#limits.suspectMs);
    for (const [each, until] of this.#suspects) {
      if (until > now) break;
      this.#suspects.delete(each);
    }
  }

  #isSuspect(owner: string): boolean {
    return (this.#suspects.get(owner) ?? 0) > performance.now();
  }
}

/**
 * Whether the database rejected the content: SQLSTATE classes 22 (data exception), 23 (constraint violation) and 54 (limit
 * exceeded). The statement changed nothing, and other items of it may be valid.
 */
export function isRejection(error: unknown): boolean {
  return /^(22|23|54)...$/.test(String((error as { code?: unknown } | null)?.code));
}
