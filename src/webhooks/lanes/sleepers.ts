/** Lanes that wait for a time: for the end of a pause, for their rate limit, or for a retry. The cost of a tick does not depend on their number. */

import type { Lane } from './lane.ts';

/** Lanes wake in slots of this many milliseconds. */
const slotMs = 25;
/** Lanes that wake at once. The event loop is busy for some milliseconds with them; the others wake in the next ticks. */
export const wokenMax = 4_000;

export class Sleepers {
  readonly #slots = new Map<number, Set<Lane>>();
  readonly #slotOf = new Map<Lane, number>();
  /** All slots up to this one have been woken. */
  #wokenThrough = Math.floor(performance.now() / slotMs);

  get size(): number {
    return this.#slotOf.size;
  }

  /** @param wakeAt milliseconds on the monotonic clock */
  add(lane: Lane, wakeAt: number): void {
    const slot = Math.max(Math.ceil(wakeAt / slotMs), this.#wokenThrough + 1);
    if (this.#slotOf.get(lane) === slot) return;
    this.delete(lane);
    const lanes = this.#slots.get(slot) ?? new Set();
    this.#slots.set(slot, lanes.add(lane));
    this.#slotOf.set(lane, slot);
  }

  delete(lane: Lane): void {
    const slot = this.#slotOf.get(lane);
    if (slot === undefined) return;
    this.#slotOf.delete(lane);
    const lanes = this.#slots.get(slot);
    lanes?.delete(lane);
    if (lanes?.size === 0) this.#slots.delete(slot);
  }

  /** Removes the lanes whose time has come, the earliest first. */
  wake(now: number, onAwake: (lane: Lane) => void): void {
    const through = Math.floor(now / slotMs);
    let left = wokenMax;
    while (this.#wokenThrough < through) {
      for (const lane of this.#slots.get(this.#wokenThrough + 1) ?? []) {
        if (left === 0) return;
        left -= 1;
        this.delete(lane);
        onAwake(lane);
      }
      this.#wokenThrough += 1;
    }
  }
}
