/** Work of which a few pieces run at once, because each is expensive. What waits is run by turns of the owners (owner_turns.ts). */

import { OwnerTurns } from './owner_turns.ts';
import { isFree } from './share.ts';

export class LimitedWork {
  readonly #max: number;
  readonly #hasShares: boolean;
  #running = 0;
  /** The owner of each running piece, if owners have shares. */
  readonly #owners: string[] = [];
  readonly #waiting = new OwnerTurns<() => void>();

  /**
   * @param max how many pieces run at once
   * @param hasShares whether owners have shares of these (share.ts), because pieces can hang: turns alone do not help those who wait
   */
  constructor(max: number, hasShares = false) {
    this.#max = max;
    this.#hasShares = hasShares;
  }

  get isIdle(): boolean {
    return this.#running === 0;
  }

  /** How many pieces of the owner wait for their turn. */
  waitingOf(owner: string): number {
    return this.#waiting.countOf(owner);
  }

  /** Runs the work when it is its turn. @returns its result @throws what the work throws */
  async run<Result>(owner: string, work: () => Promise<Result>): Promise<Result> {
    if (this.#mayBegin(owner)) this.#begin(owner);
    else await new Promise<void>((resolve) => this.#waiting.add(owner, resolve));
    try {
      return await work();
    } finally {
      this.#running -= 1;
      if (this.#hasShares) this.#owners.splice(this.#owners.indexOf(owner), 1);
      this.#beginNext();
    }
  }

  #mayBegin(owner: string): boolean {
    if (this.#running >= this.#max) return false;
    if (!this.#hasShares) return true;
    const own = this.#owners.reduce((count, each) => (each === owner ? count + 1 : count), 0);
    return isFree(this.#max, this.#running, own);
  }

  #begin(owner: string): void {
    this.#running += 1;
    if (this.#hasShares) this.#owners.push(owner);
  }

  /** With shares, one end may let several begin. */
  #beginNext(): void {
    for (const owner of this.#waiting.owners()) {
      if (this.#running >= this.#max) return;
      if (!this.#mayBegin(owner)) continue;
      this.#begin(owner);
      this.#waiting.takeOf(owner)?.();
    }
  }
}
