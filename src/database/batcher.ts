/**
 * A batcher joins work of many requests, so that they share statements and commits. Items that arrive while a batch is
 * in flight wait for the next batch, so batches grow with the load. A batch starts at the end of a turn of the event loop. It does
 * not wait for more items: that made no batch cheaper, and 32 connections a fifth slower.
 *
 * Owners take turns: a flood of one owner delays an item of another by at most one batch. Each item gets its own result.
 * When the database rejects a batch because of its content, the batcher splits the batch until it finds the bad item.
 *
 *   added → waiting → in a batch → settled
 *              │            ↳ (rejected) → in each half of the batch → settled
 *              ↳ (timeout) → rejected: the database did not respond
 */

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
  /** Waiting items and bytes, per owner and in total. */
  ownerItemsMax: number;
  ownerBytesMax: number;
  waitingItemsMax: number;
  waitingBytesMax: number;
  batchesInFlightMax: number;
  /** After this time a batch counts as slow, and the next one no longer waits for it. */
  slowBatchMs: number;
  /** Longest wait of an item. Same as the timeout for a connection of the pool. */
  waitMsMax: number;
}

const defaultLimits: BatcherLimits = {
  batchItemsMax: 256,
  batchBytesMax: 4_194_304,
  ownerItemsMax: 2_000,
  ownerBytesMax: 16_777_216,
  waitingItemsMax: 20_000,
  waitingBytesMax: 67_108_864,
  batchesInFlightMax: 4,
  slowBatchMs: 100,
  waitMsMax: connectionTimeoutMs,
};

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
  item: Item;
  bytes: number;
  addedAt: number;
  resolve: (result: Result) => void;
  reject: (error: unknown) => void;
}

/** Waiting items of one owner, oldest first. */
interface Queue<Item, Result> {
  entries: Waiting<Item, Result>[];
  bytes: number;
}

export class Batcher<Item, Result> {
  readonly #execute: BatcherOptions<Item, Result>['execute'];
  readonly #limits: BatcherLimits;
  /** By owner. An owner moves to the end after its turn. */
  readonly #queues = new Map<string, Queue<Item, Result>>();
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
   * @param bytes approximate size in memory
   * @throws BatcherFullError when too many items are waiting
   */
  async add(owner: string, item: Item, bytes: number): Promise<Result> {
    const { ownerItemsMax, ownerBytesMax, waitingItemsMax, waitingBytesMax } = this.#limits;
    const queue = this.#queues.get(owner) ?? { entries: [], bytes: 0 };
    const { length } = queue.entries;
    if (length >= ownerItemsMax || (length > 0 && queue.bytes + bytes > ownerBytesMax))
      throw new BatcherFullError(true);
    if (this.#items >= waitingItemsMax || (this.#items > 0 && this.#bytes + bytes > waitingBytesMax))
      throw new BatcherFullError(false);
    const { promise, resolve, reject } = Promise.withResolvers<Result>();
    queue.entries.push({ item, bytes, addedAt: performance.now(), resolve, reject });
    queue.bytes += bytes;
    this.#queues.set(owner, queue);
    this.#items += 1;
    this.#bytes += bytes;
    this.#schedule();
    this.#expiry ??= setTimeout(() => this.#expire(), this.#limits.waitMsMax);
    return promise;
  }

  /** Rejects items that waited too long. The request may have lost its permission in the meantime. */
  #expire(): void {
    const before = performance.now() - this.#limits.waitMsMax;
    for (const [owner, queue] of this.#queues) {
      while (queue.entries[0] !== undefined && queue.entries[0].addedAt <= before)
        this.#shift(owner, queue).reject(new DatabaseTimeoutError());
    }
    const oldest = Math.min(...this.#queues.values().map(({ entries: [first] }) => first?.addedAt ?? 0));
    this.#expiry =
      this.#items === 0 ? undefined : setTimeout(() => this.#expire(), Math.max(oldest - before, 1));
  }

  /** Takes the first item of an owner, and moves the owner to the end. */
  #shift(owner: string, queue: Queue<Item, Result>): Waiting<Item, Result> {
    const first = queue.entries.shift() as Waiting<Item, Result>;
    queue.bytes -= first.bytes;
    this.#bytes -= first.bytes;
    this.#items -= 1;
    this.#queues.delete(owner);
    if (queue.entries.length > 0) this.#queues.set(owner, queue);
    return first;
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
    const batch = this.#takeBatch();
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

  #takeBatch(): Waiting<Item, Result>[] {
    const { batchItemsMax, batchBytesMax } = this.#limits;
    const batch: Waiting<Item, Result>[] = [];
    let bytes = 0;
    // `#shift` re-adds the owner while this loop runs. A Map then visits it again, after all others.
    for (const [owner, queue] of this.#queues) {
      const [first] = queue.entries as [Waiting<Item, Result>];
      if (batch.length >= batchItemsMax || (batch.length > 0 && bytes + first.bytes > batchBytesMax)) break;
      batch.push(this.#shift(owner, queue));
      bytes += first.bytes;
    }
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
      if (batch.length > 1 && isRejection(error)) {
        const middle = batch.length >> 1;
        await this.#settle(batch.slice(0, middle));
        await this.#settle(batch.slice(middle));
      } else {
        for (const { reject } of batch) reject(error);
      }
    }
  }
}

/**
 * Whether the database rejected the content: SQLSTATE classes 22 (data exception), 23 (constraint violation) and 54 (limit
 * exceeded). The statement changed nothing, and other items of it may be valid.
 */
export function isRejection(error: unknown): boolean {
  return /^(22|23|54)...$/.test(String((error as { code?: unknown } | null)?.code));
}
