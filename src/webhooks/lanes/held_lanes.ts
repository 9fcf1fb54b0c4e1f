/**
 * The lanes that this node holds, by what each of them could do next, and what all of them together have in memory:
 * bounded, whatever waits in the database.
 *
 *   a lane is   ready: may have something to start        sleeping: waits for a pause or for its rate
 *               hungry: has more in the database          repeating: has repetitions to come
 *   none of them or several; which of it is true is looked at when its turn has come
 */

import type { Lane } from './lane.ts';

/** Lanes held at once at most. */
const lanesMax = 20_000;
/** Deliveries in memory, and bytes of their bodies, at most. */
const waitingTotalMax = 40_000;
/** Those under way included. Past it a lane gets one delivery at a time; past the second nothing is read at all. */
const waitingBytesMax = 67_108_864;
const waitingBytesLimit = 4 * waitingBytesMax;

export class HeldLanes {
  readonly #byId = new Map<number, Lane>();
  /** In turns. */
  readonly ready = new Set<Lane>();
  readonly sleeping = new Set<Lane>();
  readonly hungry = new Set<Lane>();
  readonly repeating = new Set<Lane>();
  /** Deliveries of all lanes that wait to be started, about, and bytes of those that wait or are under way. */
  waiting = 0;
  waitingBytes = 0;

  get size(): number {
    return this.#byId.size;
  }

  get hasRoom(): boolean {
    return this.#byId.size < lanesMax;
  }

  get(id: number): Lane | undefined {
    return this.#byId.get(id);
  }

  has(id: number): boolean {
    return this.#byId.has(id);
  }

  ids(): number[] {
    return [...this.#byId.keys()];
  }

  all(): IterableIterator<Lane> {
    return this.#byId.values();
  }

  add(lane: Lane): void {
    this.#byId.set(lane.id, lane);
  }

  remove(lane: Lane): void {
    this.#byId.delete(lane.id);
    for (const set of [this.ready, this.sleeping, this.hungry, this.repeating]) set.delete(lane);
  }

  /** Something about a lane has changed: it is put where it may be wanted. */
  mark(lane: Lane): void {
    if (lane.isLost) return;
    if (lane.waitingCount > 0) this.ready.add(lane);
    if (lane.wantsMore) this.hungry.add(lane);
    if (Number.isFinite(lane.retryAt)) this.repeating.add(lane);
  }

  get isCrowded(): boolean {
    return this.waiting > waitingTotalMax || this.waitingBytes > waitingBytesMax;
  }

  /** Whether nothing more may be read for any lane. */
  get isFull(): boolean {
    return this.waitingBytes > waitingBytesLimit;
  }

  /** Where memory is short, those who have nothing waiting still get something: nobody is kept out by the others. */
  hasSpace(lane: Lane): boolean {
    if (this.isFull) return false;
    return !this.isCrowded || lane.waitingCount === 0;
  }

  /** Puts right what forgetting lanes has left in the counts. */
  recount(): void {
    this.waiting = 0;
    this.waitingBytes = 0;
    for (const lane of this.all()) {
      this.waiting += lane.waitingCount;
      this.waitingBytes += lane.bytes;
    }
  }
}
