/**
 * Hints: what a notification says. Any role that may connect to the database can send any text on any channel, as often as it
 * likes, so a hint is never believed. It only tells a listener to read the database now instead of at its next poll. The listener
 * works on the hints of a channel one batch at a time, with pauses. So hints cost a bounded number of statements, a bounded share
 * of the time, and a bounded amount of memory.
 *
 *   idle → (first hint) working on it → pause, hints are collected → working on all of them → … → idle
 */

/** Different payloads, and characters, that are collected for the next batch. A longer payload is not genuine. */
const payloadsMax = 1_000;
const charactersMax = 262_144;
/**
 * A listener rests for this multiple of the time that its last batch took, within these limits. The first is for genuine hints, behind which
 * those of others wait.
 */
const restFactor = 1;
const restFactorOfFalse = 4;
const restMsMax = 1_000;

/** Different payloads since the last batch. */
export interface HintBatch {
  payloads: ReadonlySet<string>;
  /** Whether there were more payloads than are listed. */
  isCut: boolean;
}

export interface HintListener {
  /** Milliseconds between the end of a batch and the next one, at least. Default: `pauseMsMin`. */
  pauseMs?: number;
  /**
   * Reads from the database what the hints are about. May throw or reject.
   * @returns how many of the payloads proved false
   */
  onHints: (batch: HintBatch) => number | Promise<number>;
  /** Listening has begun (again). Earlier notifications may be lost. */
  onListening?: () => void;
}

/** Twenty milliseconds are little beside the second of a poll, and allow at most fifty batches per second. */
export const pauseMsMin = 20;

export class HintQueue {
  readonly #listener: HintListener;
  readonly #onFalse: (count: number) => void;
  readonly #onError: (error: Error) => void;
  #payloads = new Set<string>();
  #characters = 0;
  #isCut = false;
  #isBusy = false;
  #isStopped = false;
  #mayBeginAt = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;

  constructor(listener: HintListener, onFalse: (count: number) => void, onError: (error: Error) => void) {
    this.#listener = listener;
    this.#onFalse = onFalse;
    this.#onError = onError;
  }

  /** Never throws. */
  add(payload: string): void {
    if (this.#isStopped) return;
    if (this.#payloads.size >= payloadsMax || this.#characters + payload.length > charactersMax) {
      this.#isCut = true;
    } else if (!this.#payloads.has(payload)) {
      this.#payloads.add(payload);
      this.#characters += payload.length;
    }
    this.#schedule();
  }

  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#timer);
  }

  #schedule(): void {
    if (this.#isBusy || this.#timer !== undefined || this.#isStopped) return;
    const waitMs = this.#mayBeginAt - performance.now();
    if (waitMs <= 0) {
      void this.#work();
      return;
    }
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.#work();
    }, waitMs);
    this.#timer.unref();
  }

  async #work(): Promise<void> {
    const batch = { payloads: this.#payloads, isCut: this.#isCut };
    this.#payloads = new Set();
    this.#characters = 0;
    this.#isCut = false;
    this.#isBusy = true;
    let factor = batch.isCut ? restFactorOfFalse : restFactor;
    const begunAt = performance.now();
    try {
      const count = await this.#listener.onHints(batch);
      if (count > 0) {
        factor = restFactorOfFalse;
        this.#onFalse(count);
      }
    } catch (error) {
      if (!this.#isStopped) this.#onError(error as Error);
    }
    const endedAt = performance.now();
    const { pauseMs = pauseMsMin } = this.#listener;
    this.#mayBeginAt = endedAt + Math.max(pauseMs, Math.min(factor * (endedAt - begunAt), restMsMax));
    this.#isBusy = false;
    if (this.#payloads.size > 0 || this.#isCut) this.#schedule();
  }
}

/** For a channel whose notifications have no content. @returns the number of payloads with any */
export function countNonempty({ payloads }: HintBatch): number {
  return payloads.size - (payloads.has('') ? 1 : 0);
}
