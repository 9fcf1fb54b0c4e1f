/**
 * How many requests of the last class may go while ordinary ones wait.
 *
 * Shares always leave some places free. If the last class took all of them on a busy thread, lists would get most of its time, because
 * they cost several times as much as other requests. So on a busy thread the last class has turns. A thread that is not busy has time
 * for it, whoever waits.
 */

import type { Precedence } from './precedence.ts';

/** One turn for so many ordinary requests, and so many more in each interval, so that the last class is never shut out. */
const ordinaryForOne = 8;
const perInterval = 2;

export class LastTurns {
  /** Whether the server thread works nearly all the time. */
  isBusy = false;
  #left = 0;
  /** Requests that got their first place in this interval. */
  #ordinary = 0;
  #last = 0;
  /** Whether ordinary requests get more places than lists. If not, fewer lists would only leave the thread idle. */
  #areOrdinaryServed = false;

  /** Whether the last class goes before the ordinary one now. */
  get hasOne(): boolean {
    return this.#left >= 1;
  }

  /** Whether the last class needs a turn now. */
  isLimited(ordinaryWaiting: number): boolean {
    return this.isBusy && this.#areOrdinaryServed && ordinaryWaiting > 0;
  }

  /** A request got its first place. */
  count(precedence: Precedence): void {
    if (precedence === 'ordinary') {
      this.#ordinary += 1;
      this.#add(1 / ordinaryForOne);
    } else if (precedence === 'last') {
      this.#last += 1;
      this.#add(-1);
    }
  }

  endInterval(): void {
    this.#areOrdinaryServed = this.#ordinary > this.#last;
    this.#ordinary = 0;
    this.#last = 0;
    this.#add(perInterval);
  }

  #add(turns: number): void {
    this.#left = Math.min(Math.max(0, this.#left + turns), perInterval);
  }
}
