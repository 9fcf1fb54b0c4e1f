/**
 * The recorder: gathers outcomes of all lanes and writes them together, the next lot while the last one is on its
 * way to the disk at the latest. Where the database is away it keeps them, and says when there are too many to go on.
 */

import type { Database } from '../database/database.ts';
import type { Lane } from './lane.ts';
import { type Outcome, writeOutcomes } from './outcome.ts';

/** Milliseconds that an outcome waits for company. */
const gatherMs = 4;
/** Outcomes of one statement at most. */
const batchMax = 2_000;
/** Unwritten outcomes at which nothing more is started. */
const backlogMax = 10_000;
const errorPauseMs = 250;

export interface RecorderOptions {
  db: Database;
  node: string;
  /** Lanes that others hold by now. */
  onLost: (lanes: number[]) => void;
  /** Outcomes are durable; the lanes they were of. */
  onWritten: (lanes: Iterable<Lane>) => void;
  onError: (error: Error) => void;
}

export class Recorder {
  readonly #options: RecorderOptions;
  #outcomes: Outcome[] = [];
  readonly #lanes = new Map<number, Lane>();
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> | undefined;

  constructor(options: RecorderOptions) {
    this.#options = options;
  }

  get isFull(): boolean {
    return this.#outcomes.length >= backlogMax;
  }

  add(lane: Lane, outcome: Outcome): void {
    this.#outcomes.push(outcome);
    this.#lanes.set(lane.id, lane);
    if (this.#writing === undefined && this.#timer === undefined) {
      this.#timer = setTimeout(() => this.#begin(), gatherMs);
    }
  }

  /** Writes what there is. @throws never: what cannot be written is tried again by whoever holds the lanes next */
  async flush(): Promise<void> {
    while (this.#outcomes.length > 0 || this.#writing !== undefined) {
      this.#begin();
      const count = this.#outcomes.length;
      await this.#writing;
      if (this.#outcomes.length >= count && count > 0) return;
    }
  }

  #begin(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#writing !== undefined || this.#outcomes.length === 0) return;
    this.#writing = this.#write().finally(() => {
      this.#writing = undefined;
      if (this.#outcomes.length > 0 && this.#timer === undefined) {
        this.#timer = setTimeout(() => this.#begin(), this.#failed ? errorPauseMs : gatherMs);
      }
    });
  }

  #failed = false;

  async #write(): Promise<void> {
    const { db, node, onLost, onWritten, onError } = this.#options;
    const outcomes = this.#outcomes.splice(0, batchMax);
    const touched = new Set(outcomes.map(({ lane }) => lane));
    const lanes = [...touched].map((id) => this.#lanes.get(id) as Lane);
    const left = new Set(this.#outcomes.map(({ lane }) => lane));
    for (const id of touched) if (!left.has(id)) this.#lanes.delete(id);
    const now = performance.now();
    // A cursor may be ahead of outcomes that are left for the next lot only where those are of other lanes.
    const progress = lanes.map((lane) => ({
      lane: lane.id,
      cursor: left.has(lane.id) ? lane.cursor : lane.reached,
      failures: lane.failures,
      pauseMs: Math.max(lane.pausedUntil - now, 0),
    }));
    try {
      const lost = await writeOutcomes(db, node, progress, outcomes);
      this.#failed = false;
      const isLost = new Set(lost);
      for (const [index, lane] of lanes.entries()) {
        if (!isLost.has(lane.id)) lane.cursor = Math.max(lane.cursor, progress[index]?.cursor ?? 0);
      }
      if (lost.length > 0) onLost(lost);
      onWritten(lanes.filter(({ id }) => !isLost.has(id)));
    } catch (error) {
      this.#failed = true;
      this.#outcomes = outcomes.concat(this.#outcomes);
      for (const lane of lanes) this.#lanes.set(lane.id, lane);
      onError(error as Error);
    }
  }
}
