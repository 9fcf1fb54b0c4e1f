/**
 * The size of a fan-out pass. A pass that the database cannot finish is cut to an eighth, down to a single event of a single
 * account. Eight successful passes cover what the larger pass was about to take. Then the size grows again.
 *
 *   full → (failed) → an eighth → … → one event → (failed) → parked
 *   eight successful passes → eight times as large
 */

import { type PassLimits, passLimits } from './outbox_selection.ts';

const cutFactor = 8;
/** How often a pass is cut until it has a single event. */
const cutsMax = 4;

export class PassSize {
  #cuts = 0;
  /** Successful passes since the last change of size. */
  #good = 0;

  get limits(): PassLimits {
    const share = cutFactor ** this.#cuts;
    const { accounts, events, deliveries } = passLimits;
    const part = (whole: number) => Math.max(1, Math.floor(whole / share));
    return { accounts: part(accounts), events: part(events), deliveries: part(deliveries) };
  }

  /** Whether no pass has failed lately. */
  get isFull(): boolean {
    return this.#cuts === 0;
  }

  /** Whether a pass takes a single event. */
  get isSingle(): boolean {
    return this.#cuts === cutsMax;
  }

  cut(): void {
    this.#cuts = Math.min(cutsMax, this.#cuts + 1);
    this.#good = 0;
  }

  /** The outbox is empty. */
  reset(): void {
    this.#cuts = 0;
  }

  /** A pass succeeded. */
  grow(): void {
    if (this.#cuts === 0) return;
    this.#good += 1;
    if (this.#good < cutFactor) return;
    this.#cuts -= 1;
    // These passes cover one pass of the larger size.
    this.#good = 1;
  }
}

/**
 * SQLSTATEs that a smaller pass may avoid: cancelled by a timeout (57014), out of memory (53200), program limit
 * exceeded (class 54), data exception (class 22), and lock not available (55P03).
 */
const tooLargeCodes = /^(57014|53200|54\w{3}|22\w{3}|55P03)$/;

export function isLocked(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '55P03';
}

/** Whether a pass failed because of its content. Otherwise the database was unavailable. */
export function isPassTooLarge(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' && tooLargeCodes.test(code);
}
