/**
 * The size of a fan-out pass. A pass that the database refuses is cut to an eighth, down to a single account, which is then handled
 * apart from the others (suspects.ts). Eight successful passes cover what the larger pass was about to take. Then the size grows
 * again.
 *
 *   full → (failed) → an eighth → … → one account → (failed) → that account apart, full
 *   eight successful passes → eight times as large
 */

import { type PassLimits, passLimits } from './outbox_selection.ts';

const cutFactor = 8;
/** How often a pass is cut until it has a single account. */
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

  cut(): void {
    this.#cuts = Math.min(cutsMax, this.#cuts + 1);
    this.#good = 0;
  }

  /** The account whose events failed is known, or the outbox is empty. */
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
 * SQLSTATEs that say nothing about the content of a pass: the connection (08), a rolled back transaction (40), resources other than
 * memory (53), a shutdown (57P), a server that only reads (25006), missing rights or databases (28, 3D).
 */
const unrelatedCodes = /^(08\w{3}|40\w{3}|53(?!200)\w{3}|57P\w{2}|25006|28\w{3}|3D\w{3})$/;
/** A table, column, function or right is missing: for the statement, or for a filter or trigger that its content meets. */
const ambiguousCodes = /^42\w{3}$/;
const sqlstate = /^[0-9A-Z]{5}$/;

/** Whether another session held a lock for too long. */
export function isLocked(error: unknown): boolean {
  return codeOf(error) === '55P03';
}

/** Whether the database cancelled the statement because it took too long. */
export function isTimeout(error: unknown): boolean {
  return codeOf(error) === '57014';
}

/**
 * Whether a pass may have failed because of its content. Otherwise the database was unavailable.
 * @param runEmpty runs the same statement without content. If it fails, so does a pass with any content.
 */
export async function isOfContent(error: unknown, runEmpty: () => Promise<unknown>): Promise<boolean> {
  const code = codeOf(error);
  if (code === undefined || !sqlstate.test(code) || unrelatedCodes.test(code)) return false;
  if (!ambiguousCodes.test(code)) return true;
  return await runEmpty().then(
    () => true,
    () => false,
  );
}

function codeOf(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : undefined;
}
