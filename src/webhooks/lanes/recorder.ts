/**
 * The recorder: gathers outcomes of all lanes and writes them together: at once after a pause, and under load one statement
 * every few milliseconds. Where the database is away it keeps them, and says when there are too many to go on.
 */

import type { Database } from '../../database/database.ts';
import type { Lane } from './lane.ts';
import type { Outcome } from './outcome_policy.ts';
import { excludeWritten, type Progress, writeOutcomes } from './outcome_store.ts';

/** Milliseconds between the end of a statement and the next one. */
const flushIntervalMs = 4;
/** Outcomes of one statement at most. */
const batchMax = 2_000;
/** Unwritten outcomes at which nothing more is started. */
const unwrittenMax = 10_000;
const errorPauseMs = 250;
/** Failed statements after which a flush gives up. */
const flushFailuresMax = 3;
/** Deliveries that the cursor in a lane's row may lag behind: what whoever takes the lane after a crash must look at. */
const cursorLagMax = 128;

export interface RecorderOptions {
  db: Database;
  node: string;
  /** Lanes that others hold by now. */
  onLost: (lanes: Lane[]) => void;
  /** Outcomes that are durable, and the lanes they were of. */
  onWritten: (lanes: Iterable<Lane>, outcomes: Outcome[]) => void;
  onError: (error: Error) => void;
}

export class Recorder {
  readonly #options: RecorderOptions;
  #outcomes: Outcome[] = [];
  /** For each of them its lane, as it was held when the attempt began. */
  #holders: Lane[] = [];
  /** Of the outcomes that wait, and of those that are being written. */
  #lanes = new Set<Lane>();
  #beingWritten: ReadonlySet<Lane> = new Set();
  #timer: NodeJS.Timeout | undefined;
  /** Whether the next statement begins at the end of this turn. */
  #isDue = false;
  /** When the last statement ended. */
  #writtenAt = Number.NEGATIVE_INFINITY;
  #writing: Promise<void> | undefined;

  constructor(options: RecorderOptions) {
    this.#options = options;
  }

  get isFull(): boolean {
    return this.#outcomes.length >= unwrittenMax;
  }

  /** Whether outcomes of the lane are not written yet: who lets go of it now loses them. */
  hasOutcomesOf(lane: Lane): boolean {
    return this.#lanes.has(lane) || this.#beingWritten.has(lane);
  }

  /**
   * @param lane as it was held when the attempt began. Where it has been lost since, nothing is written, also if this
   * node holds it again: what of it was not written by then is not known to have been done, and is done again.
   */
  add(lane: Lane, outcome: Outcome): void {
    if (lane.isLost) return;
    this.#outcomes.push(outcome);
    this.#holders.push(lane);
    this.#lanes.add(lane);
    this.#schedule();
  }

  /** The statement after a pause begins at the end of the turn, which may bring more outcomes. */
  #schedule(): void {
    if (this.#writing !== undefined || this.#timer !== undefined || this.#isDue) return;
    const waitMs = this.#writtenAt + flushIntervalMs - performance.now();
    if (waitMs > 0) {
      this.#timer = setTimeout(() => this.#begin(), waitMs);
    } else {
      this.#isDue = true;
      setImmediate(() => this.#begin());
    }
  }

  /**
   * Writes all outcomes, those included that wait behind a statement in progress. Gives up after some failures: whoever
   * holds the lanes next sends those deliveries again.
   */
  async flush(): Promise<void> {
    let failures = 0;
    while (failures < flushFailuresMax && (this.#outcomes.length > 0 || this.#writing !== undefined)) {
      this.#begin();
      await this.#writing;
      if (this.#failed) failures += 1;
    }
  }

  #begin(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isDue = false;
    if (this.#writing !== undefined || this.#outcomes.length === 0) return;
    this.#writing = this.#write().finally(() => {
      this.#writing = undefined;
      this.#writtenAt = performance.now();
      if (this.#outcomes.length > 0 && this.#timer === undefined) {
        this.#timer = setTimeout(() => this.#begin(), this.#failed ? errorPauseMs : flushIntervalMs);
      }
    });
  }

  #failed = false;
  /** Outcomes of the next statement at most: halved until one is found that the database refuses. */
  #batch = batchMax;

  /** The next ones, without those of lanes that were lost meanwhile. */
  #takeBatch(): { outcomes: Outcome[]; holders: Lane[] } {
    const outcomes = this.#outcomes.splice(0, this.#batch);
    const holders = this.#holders.splice(0, this.#batch);
    if (!holders.some(({ isLost }) => isLost)) return { outcomes, holders };
    return {
      outcomes: outcomes.filter((_outcome, index) => !(holders[index] as Lane).isLost),
      holders: holders.filter(({ isLost }) => !isLost),
    };
  }

  async #write(): Promise<void> {
    const { db, node, onLost, onWritten, onError } = this.#options;
    const { outcomes, holders } = this.#takeBatch();
    if (outcomes.length === 0) return;
    const lanes = [...new Set(holders)];
    this.#beingWritten = new Set(lanes);
    const left = new Set(this.#holders);
    this.#lanes = left;
    const now = performance.now();
    // A cursor may be ahead of outcomes that are left for the next lot only where those are of other lanes.
    const progress = lanes.map((lane) =>
      progressOf(lane, left.has(lane) ? lane.cursor : lane.attemptedThrough, now),
    );
    try {
      // After a failure nobody knows whether the last statement was carried out.
      const unknown = this.#failed ? await excludeWritten(db, outcomes) : outcomes;
      const lost = await writeOutcomes(db, node, progress, unknown);
      this.#failed = false;
      this.#batch = Math.min(this.#batch * 2, batchMax);
      const isLost = new Set(lost);
      for (const [index, lane] of lanes.entries()) {
        if (isLost.has(lane.id)) continue;
        const { cursor, failures, pauseMs, mayLag } = progress[index] as Progress;
        lane.cursor = Math.max(lane.cursor, cursor);
        if (!mayLag) lane.stored = { cursor, failures, isPaused: pauseMs > 0 };
      }
      if (isLost.size === 0) return onWritten(lanes, outcomes);
      onLost(lanes.filter(({ id }) => isLost.has(id)));
      onWritten(
        lanes.filter(({ id }) => !isLost.has(id)),
        outcomes.filter(({ lane }) => !isLost.has(lane)),
      );
    } catch (error) {
      this.#failed = true;
      onError(error as Error);
      for (const lane of lanes) lane.stored = null;
      const isRefused = /^2[23]/.test(String((error as { code?: unknown }).code));
      if (isRefused) this.#batch = Math.max(outcomes.length >> 1, 1);
      // The one that can never be written must not keep all others from it.
      if (!isRefused || outcomes.length > 1) {
        this.#outcomes = outcomes.concat(this.#outcomes);
        this.#holders = holders.concat(this.#holders);
        for (const lane of lanes) this.#lanes.add(lane);
      }
    } finally {
      this.#beingWritten = new Set();
    }
  }
}

function progressOf(lane: Lane, cursor: number, now: number): Progress {
  const { stored, failures } = lane;
  const pauseMs = Math.max(lane.pausedUntil - now, 0);
  const isSame = stored !== null && stored.failures === failures && !stored.isPaused && pauseMs === 0;
  return {
    lane: lane.id,
    cursor,
    failures,
    pauseMs,
    mayLag: isSame && cursor - stored.cursor < cursorLagMax,
  };
}
