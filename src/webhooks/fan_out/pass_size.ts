/**
 * How much a pass of the fan-out may take. A pass that the database could not finish is cut to an eighth, down to a single
 * event of a single account. After eight smaller ones, which cover what the larger one was about to take, it grows again.
 *
 *   full → (failed) → an eighth → … → one event → (failed) → parked;   eight that went well → eight times as much
 */

import { type PassLimits, passLimits } from './outbox_selection.ts';

const cutFactor = 8;
/** How often a pass is cut until it has a single event. */
const cutsMax = 4;

export class PassSize {
  #cuts = 0;
  /** Passes of this size that went well since the last change, of those that are needed to grow. */
  #good = 0;

  get limits(): PassLimits {
    const share = cutFactor ** this.#cuts;
    const { accounts, events, deliveries } = passLimits;
    const part = (whole: number) => Math.max(1, Math.floor(whole / share));
    return { accounts: part(accounts), events: part(events), deliveries: part(deliveries) };
  }

  /** Whether a pass takes no more than one event. */
  get isSingle(): boolean {
    return this.#cuts === cutsMax;
  }

  cut(): void {
    this.#cuts = Math.min(cutsMax, this.#cuts + 1);
    this.#good = 0;
  }

  /** Nothing waits any more. */
  reset(): void {
    this.#cuts = 0;
  }

  /** A pass went well. */
  grow(): void {
    if (this.#cuts === 0) return;
    this.#good += 1;
    if (this.#good < cutFactor) return;
    this.#cuts -= 1;
    // The larger size has been covered once by these.
    this.#good = 1;
  }
}

/**
 * SQLSTATE of what a smaller pass may not meet: cancelled by a timeout (57014), out of memory (53200), beyond a limit of
 * the database (54…), a value that it cannot deal with (22…), or a lane that somebody else has locked (55P03).
 */
const tooMuch = /^(57014|53200|54\w{3}|22\w{3}|55P03)$/;

export function isLocked(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '55P03';
}

/** Whether a pass failed because of what it took, not because the database was away. */
export function isPassTooLarge(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' && tooMuch.test(code);
}
