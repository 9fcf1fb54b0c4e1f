/**
 * The turns of recoveries. A node runs one step at a time, and steps take from milliseconds to seconds, so turns are given by time:
 * a tenant that has used more time than others rests until they have used as much, or have nothing to do.
 *
 * One that has nothing that may run now waits for a while, whatever the others do.
 *
 *   without a step → (its step took t ms) → rests → (all others that have work rest too) → t less what the least of them used → … → 0
 */

/** Maximum accounts and apps to remember. */
const restingMax = 1_000;

export class RecoveryTurns {
  /** Milliseconds that each has used more than those without an entry. */
  readonly #usedMs = new Map<string, number>();
  /** Until when those wait that had nothing to run, on the monotonic clock. */
  readonly #waitingUntil = new Map<string, number>();
  /** The account or app that had the last turn. The search for the next one begins after it. */
  after = '';

  /** Those whose turn it is not. */
  get resting(): string[] {
    const now = performance.now();
    for (const [turn, until] of this.#waitingUntil) if (until <= now) this.#waitingUntil.delete(turn);
    return [...this.#usedMs.keys(), ...this.#waitingUntil.keys()];
  }

  /** It has nothing that may run now. */
  wait(turn: string, ms: number): void {
    const [oldest] = this.#waitingUntil.keys();
    if (oldest !== undefined && this.#waitingUntil.size >= restingMax) this.#waitingUntil.delete(oldest);
    this.#waitingUntil.set(turn, performance.now() + ms);
  }

  /** A step has ended, however many recoveries the account or app has. */
  use(turn: string, ms: number): void {
    if (!this.#usedMs.has(turn) && this.#usedMs.size >= restingMax) this.advance();
    // At least 1, so that everyone rests after a step.
    this.#usedMs.set(turn, (this.#usedMs.get(turn) ?? 0) + Math.max(1, ms));
  }

  /** Nobody else has work: ends the rest of those that have used least. @returns whether anybody rested */
  advance(): boolean {
    if (this.#usedMs.size === 0) return false;
    const leastMs = Math.min(...this.#usedMs.values());
    for (const [turn, ms] of this.#usedMs) {
      if (ms > leastMs) this.#usedMs.set(turn, ms - leastMs);
      else this.#usedMs.delete(turn);
    }
    return true;
  }
}
