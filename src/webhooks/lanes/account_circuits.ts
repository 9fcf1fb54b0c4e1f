/**
 * Accounts whose deliveries fail in the lane of an app's own subscription. Such a lane carries events of many accounts, and its endpoint may
 * refuse, or choke on, those of one: an account whose deliveries keep failing is set aside, and the others continue.
 *
 *   closed → (3 failures in a row) open: the account's deliveries become retries → (pause) one is tried → closed | open for longer
 *
 * The circuits are only in memory: a node that takes the lane over learns them again.
 */

import { probePauseMsMax } from '../sending/retry_schedule.ts';

/** Failures of one account in a row that open its circuit. So no account alone opens the circuit of the lane (retry_schedule.ts). */
const accountFailuresMax = 3;
/** Remembered accounts. The one that failed first is forgotten first. */
const accountsMax = 1_000;
/** Milliseconds of the first pause, which doubles with each further failure. */
const pauseMsMin = 1_000;
/** Deliveries of one account that are due again after one pause. Of more, each further two thousand are due a pause later. */
const dueAtOnceMax = 2_000;

interface Circuit {
  /** Failures in a row. */
  failures: number;
  /** Milliseconds on the monotonic clock. */
  pausedUntil: number;
  isProbing: boolean;
  /** Deliveries that were set aside during this pause. */
  setAside: number;
}

export class AccountCircuits {
  readonly #failing = new Map<string, Circuit>();

  isOpen(account: string): boolean {
    return this.#openOf(account) !== undefined;
  }

  /** Whether the account's deliveries must wait: for the end of its pause, or for the one that is tried. */
  mustWait(account: string, now: number): boolean {
    const circuit = this.#openOf(account);
    return circuit !== undefined && (circuit.isProbing || now < circuit.pausedUntil);
  }

  /** An attempt of the account begins. */
  begin(account: string): void {
    const circuit = this.#openOf(account);
    if (circuit === undefined) return;
    circuit.isProbing = true;
    circuit.setAside = 0;
  }

  /** An attempt of the account has ended, whatever its result. */
  end(account: string): void {
    const circuit = this.#failing.get(account);
    if (circuit !== undefined) circuit.isProbing = false;
  }

  succeed(account: string): void {
    this.#failing.delete(account);
  }

  /** @param retryAfterMs what the subscriber asked for, or 0 */
  fail(account: string, now: number, retryAfterMs: number): void {
    let circuit = this.#failing.get(account);
    if (circuit === undefined) {
      circuit = { failures: 0, pausedUntil: 0, isProbing: false, setAside: 0 };
      this.#failing.set(account, circuit);
      if (this.#failing.size > accountsMax) this.#failing.delete(this.#failing.keys().next().value as string);
    }
    // Attempts that were in flight together are one failure.
    if (now >= circuit.pausedUntil) circuit.failures += 1;
    if (circuit.failures >= accountFailuresMax) {
      const until = now + Math.max(pauseOf(circuit), retryAfterMs);
      circuit.pausedUntil = Math.max(circuit.pausedUntil, until);
    }
  }

  /** Sets a delivery of the account aside. @returns milliseconds until it is due */
  setAside(account: string, now: number): number {
    const circuit = this.#openOf(account);
    if (circuit === undefined) return 0;
    const pauseMs = pauseOf(circuit);
    const leftMs = circuit.isProbing ? pauseMs : Math.max(circuit.pausedUntil - now, 0);
    const laterMs = Math.floor(circuit.setAside / dueAtOnceMax) * pauseMs;
    circuit.setAside += 1;
    return leftMs + laterMs;
  }

  #openOf(account: string): Circuit | undefined {
    const circuit = this.#failing.get(account);
    return circuit !== undefined && circuit.failures >= accountFailuresMax ? circuit : undefined;
  }
}

function pauseOf({ failures }: Circuit): number {
  return Math.min(pauseMsMin * 2 ** Math.min(failures - accountFailuresMax, 10), probePauseMsMax);
}
