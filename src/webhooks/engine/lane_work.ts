/**
 * Work about lanes that can wait, such as disabling the subscriptions of thousands that respond with 410 at once. One call runs at a
 * time and takes one connection, for a tenth of the time, so that deliveries keep the others. Tenants take turns.
 *
 *   added → waiting (once, however often it is added) → its tenant's turn: work on some → rest → …
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { OwnerTurns } from '../../shared/owner_turns.ts';

/** After work, the next waits this many times as long as it took. Subscribers that only fail ask for it with each response. */
const restFactor = 9;
/** Lanes of one call. */
const atOnce = 20;

/** What it needs to know of a lane. */
export interface WorkLane {
  readonly id: number;
  readonly tenant: { readonly key: string };
}

export class LaneWork {
  readonly #work: (lanes: number[]) => Promise<void>;
  readonly #onError: (error: Error) => void;
  readonly #turns = new OwnerTurns<number>();
  /** Those in `#turns`. */
  readonly #waiting = new Set<number>();
  #isWorking = false;

  /** @param work what it does not do because of an error is left out: the next response of the subscriber asks for it again */
  constructor(work: (lanes: number[]) => Promise<void>, onError: (error: Error) => void) {
    this.#work = work;
    this.#onError = onError;
  }

  /** Never throws. */
  add(lanes: Iterable<WorkLane>): void {
    for (const { id, tenant } of lanes) {
      if (this.#waiting.has(id)) continue;
      this.#waiting.add(id);
      this.#turns.add(tenant.key, id);
    }
    if (!this.#isWorking) void this.#run();
  }

  async #run(): Promise<void> {
    this.#isWorking = true;
    while (this.#waiting.size > 0) {
      const lanes = this.#takeSome();
      const begunAt = performance.now();
      await this.#work(lanes).catch(this.#onError);
      await sleep((performance.now() - begunAt) * restFactor, undefined, { ref: false });
    }
    this.#isWorking = false;
  }

  #takeSome(): number[] {
    const lanes: number[] = [];
    while (lanes.length < atOnce) {
      const lane = this.#turns.take();
      if (lane === undefined) break;
      this.#waiting.delete(lane);
      lanes.push(lane);
    }
    return lanes;
  }
}
