/** Whether a lane may send anything now, and what cancels attempts that have not sent their first byte. */

import type { Stoppable } from '../sending/exchange.ts';

export class LaneGate implements Stoppable {
  #isOpen: boolean;
  /** On the monotonic clock: when the subscription expires. */
  #closesAt = Number.POSITIVE_INFINITY;
  #stops = 0;

  constructor(isOpen: boolean) {
    this.#isOpen = isOpen;
  }

  get isOpen(): boolean {
    return this.#isOpen && !this.#isOver;
  }

  set isOpen(isOpen: boolean) {
    this.#isOpen = isOpen;
  }

  /** Grows whenever the lane stops: attempts that began before are cancelled before their first byte. */
  get stopCount(): number {
    return this.#stops + (this.#isOver ? 1 : 0);
  }

  /** @param closesInMs milliseconds until the subscription expires; infinite if it never does */
  protected closeIn(closesInMs: number): void {
    this.#closesAt = performance.now() + closesInMs;
  }

  protected stop(count = 1): void {
    this.#stops += count;
  }

  get #isOver(): boolean {
    return this.#closesAt !== Number.POSITIVE_INFINITY && performance.now() >= this.#closesAt;
  }
}
