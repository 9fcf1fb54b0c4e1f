/**
 * Outcomes of lanes that another session has locked. Nothing more starts in such a lane, so that few outcomes wait here.
 *
 *   set aside (the lane is paused) → the lane is still locked, so a little later again → free: written with those of other lanes
 */

import type { Lane } from './lane.ts';
import type { Outcome } from './outcome_policy.ts';

/** Milliseconds between two looks. */
const lookMs = 250;

export interface SetAsideOptions {
  findLocked: (outcomes: readonly Outcome[]) => Promise<number[]>;
  /** The lane is free, and not among those set aside any more. */
  onFree: (lane: Lane, outcomes: readonly Outcome[]) => void;
}

export class SetAside {
  readonly #options: SetAsideOptions;
  readonly #outcomes = new Map<Lane, Outcome[]>();
  #timer: NodeJS.Timeout | undefined;

  constructor(options: SetAsideOptions) {
    this.#options = options;
  }

  has(lane: Lane): boolean {
    return this.#outcomes.has(lane);
  }

  add(lane: Lane, outcome: Outcome): void {
    const those = this.#outcomes.get(lane);
    if (those === undefined) this.#outcomes.set(lane, [outcome]);
    else those.push(outcome);
    this.#pause(lane);
    this.#timer ??= setTimeout(() => void this.#look(), lookMs).unref();
  }

  /** Takes all lanes for free. @returns whether there were any */
  takeAll(): boolean {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const hasAny = this.#outcomes.size > 0;
    this.#free(new Set());
    return hasAny;
  }

  async #look(): Promise<void> {
    const outcomes = [...this.#outcomes.values()].flat();
    const locked = await this.#options.findLocked(outcomes).catch(() => outcomes.map(({ lane }) => lane));
    this.#timer = undefined;
    this.#free(new Set(locked));
    if (this.#outcomes.size > 0) this.#timer ??= setTimeout(() => void this.#look(), lookMs).unref();
  }

  #free(locked: ReadonlySet<number>): void {
    for (const [lane, those] of this.#outcomes) {
      if (locked.has(lane.id) && !lane.isLost) this.#pause(lane);
      else {
        this.#outcomes.delete(lane);
        this.#options.onFree(lane, those);
      }
    }
  }

  /** Until the look after the next. */
  #pause(lane: Lane): void {
    lane.pausedUntil = Math.max(lane.pausedUntil, performance.now() + 3 * lookMs);
  }
}
