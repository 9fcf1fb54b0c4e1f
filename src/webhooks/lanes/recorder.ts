/**
 * Collects outcomes of all lanes and writes them together: at once after a quiet time, and under load one statement
 * every few milliseconds. During an outage it keeps them, and reports when there are too many to continue. Outcomes of a lane that
 * another session has locked are set aside, and the lane is paused.
 */

import type { Database } from '../../database/database.ts';
import type { Tenant } from './delivery_memory.ts';
import type { Lane } from './lane.ts';
import type { Outcome } from './outcome_policy.ts';
import {
  excludeWritten,
  findLockedLanes,
  isInTheWay,
  type Progress,
  writeOutcomes,
} from './outcome_store.ts';
import { SetAside } from './set_aside.ts';
import { type Held, WaitingOutcomes } from './waiting_outcomes.ts';

/** Milliseconds between the end of one statement and the start of the next. */
const flushIntervalMs = 4;
/** Maximum outcomes of one statement. */
const batchMax = 2_000;
/** At this many unwritten outcomes of attempts, no more attempts start. */
const unwrittenMax = 10_000;
/**
 * Of so many unwritten outcomes of any kind, each tenant has a share (shared/share.ts), above which none of its deliveries are read: those
 * that their owner has lost the right to end as they are read, faster than their outcomes are written.
 */
const unwrittenMaxToRead = 20_000;
const errorPauseMs = 250;
/** Failed statements after which a flush gives up. */
const flushFailuresMax = 3;
/** SQLSTATEs of a statement whose values the database rejects: data exceptions and violated constraints. */
const rejectedState = /^2[23]/;
/**
 * How far the cursor in a lane's row may lag. After a crash, the next node must check this many deliveries.
 */
const cursorLagMax = 128;

export interface RecorderOptions {
  db: Database;
  node: string;
  /** Lanes whose lease this node has lost. */
  onLost: (lanes: Lane[]) => void;
  /** Outcomes that are durable, and their lanes. */
  onWritten: (lanes: Iterable<Lane>, outcomes: Outcome[]) => void;
  onError: (error: Error) => void;
}

export class Recorder {
  readonly #options: RecorderOptions;
  readonly #waiting = new WaitingOutcomes();
  /** Lanes with waiting outcomes, and lanes whose outcomes are being written. */
  #lanes = new Set<Lane>();
  #beingWritten: ReadonlySet<Lane> = new Set();
  #timer: NodeJS.Timeout | undefined;
  /** Whether the next statement starts at the end of this turn. */
  #isDue = false;
  /** When the last statement ended. */
  #writtenAt = Number.NEGATIVE_INFINITY;
  #writing: Promise<void> | undefined;
  readonly #aside: SetAside;

  constructor(options: RecorderOptions) {
    this.#options = options;
    this.#aside = new SetAside({
      findLocked: (outcomes) => findLockedLanes(options.db, outcomes),
      onFree: (lane, outcomes) => {
        for (const outcome of outcomes) this.add(lane, outcome);
      },
    });
  }

  get isFull(): boolean {
    return this.#waiting.attempts >= unwrittenMax;
  }

  /** Whether the tenant has so few unwritten outcomes that its deliveries may be read. */
  mayRead(tenant: Tenant): boolean {
    return this.#waiting.hasRoom(tenant, unwrittenMaxToRead);
  }

  /** Whether the lane has unwritten outcomes. Releasing it now would lose them. */
  hasOutcomesOf(lane: Lane): boolean {
    return this.#lanes.has(lane) || this.#beingWritten.has(lane) || this.#aside.has(lane);
  }

  /**
   * Adds an outcome.
   * @param lane the object from when the attempt started. If the node has lost that lease, it discards the outcome, and the
   *   delivery is attempted again. This holds even if the node leases the lane again.
   */
  add(lane: Lane, outcome: Outcome): void {
    if (lane.isLost) return;
    if (this.#aside.has(lane)) {
      this.#aside.add(lane, outcome);
      return;
    }
    this.#waiting.add(lane, outcome);
    this.#lanes.add(lane);
    this.#schedule();
  }

  /** After a quiet time, the statement starts at the end of the turn, which may bring more outcomes. */
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
   * Writes all outcomes, including those that wait behind a running statement. Gives up after some failures; the next
   * node with the lease then sends those deliveries again.
   */
  async flush(): Promise<void> {
    let failures = 0;
    this.#aside.takeAll();
    while (failures < flushFailuresMax && (this.#waiting.count > 0 || this.#writing !== undefined)) {
      this.#begin();
      await this.#writing;
      if (this.#failed) failures += 1;
      else if (this.#aside.takeAll()) failures += 1;
    }
  }

  #begin(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isDue = false;
    if (this.#writing !== undefined || this.#waiting.count === 0) return;
    this.#writing = this.#write().finally(() => {
      this.#writing = undefined;
      this.#writtenAt = performance.now();
      if (this.#waiting.count > 0 && this.#timer === undefined) {
        this.#timer = setTimeout(() => this.#begin(), this.#failed ? errorPauseMs : flushIntervalMs);
      }
    });
  }

  #failed = false;
  /** Maximum outcomes of the next statement. Halved until the recorder finds the one that the database rejects. */
  #batch = batchMax;

  /** Takes the next outcomes, without those of lanes that were lost. */
  #takeBatch(): Held {
    const { outcomes, holders } = this.#waiting.take(this.#batch);
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
    const left = this.#waiting.lanes();
    this.#lanes = left;
    const now = performance.now();
    const repeated = new Set(holders.filter((_lane, index) => (outcomes[index] as Outcome).hadRetry));
    // A cursor may pass unwritten outcomes only if they belong to other lanes.
    const progress = lanes.map((lane) =>
      progressOf(lane, left.has(lane) ? lane.cursor : lane.attemptedThrough, repeated.has(lane), now),
    );
    try {
      // After a failure it is unknown whether the statement was executed.
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
      if (isInTheWay(error)) {
        await this.#setAside({ outcomes, holders }, error as Error);
        return;
      }
      this.#failed = true;
      onError(error as Error);
      for (const lane of lanes) lane.stored = null;
      const isRejected = rejectedState.test(String((error as { code?: unknown }).code));
      if (isRejected) this.#batch = Math.max(outcomes.length >> 1, 1);
      const next = isRejected && outcomes.length === 1 ? withoutAttempt(outcomes[0] as Outcome) : outcomes;
      if (next.length > 0) {
        this.#waiting.return({ outcomes: next, holders });
        for (const lane of lanes) this.#lanes.add(lane);
      } else {
        // The lane waits for an outcome that can never be written. It is loaded again, and so is the delivery.
        onLost(lanes);
      }
    } finally {
      this.#beingWritten = new Set();
    }
  }

  /**
   * The statement wrote nothing. Sets the outcomes of locked lanes aside; the next statement has the others. If no lane is locked any more
   * as far as can be seen, it has half of them, until the lane is found.
   */
  async #setAside({ outcomes, holders }: Held, cause: Error): Promise<void> {
    const { db, onError } = this.#options;
    const found = await findLockedLanes(db, outcomes).catch(() => []);
    const isFound = found.length > 0 || outcomes.length === 1;
    const locked = new Set(found.length > 0 ? found : isFound ? [outcomes[0]?.lane] : []);
    if (isFound) onError(new Error('another session has locked a lane, whose outcomes wait', { cause }));
    else this.#batch = Math.max(outcomes.length >> 1, 1);
    this.#waiting.return({ outcomes, holders });
    const ofLocked = this.#waiting.takeOf(({ id }) => locked.has(id));
    for (const [index, outcome] of ofLocked.outcomes.entries()) {
      this.#aside.add(ofLocked.holders[index] as Lane, outcome);
    }
    this.#lanes = this.#waiting.lanes();
  }
}

/**
 * Returns what to write instead of an outcome that the database rejects. The delivery then continues without this attempt in the
 * log. Returns nothing if there is no attempt to leave out.
 */
function withoutAttempt(outcome: Outcome): Outcome[] {
  return outcome.attempt === null ? [] : [{ ...outcome, attempt: null }];
}

/** @param isRepeated whether a delivery was attempted again: there may be thousands of attempts past a cursor that lags, which loads read */
function progressOf(lane: Lane, cursor: number, isRepeated: boolean, now: number): Progress {
  const { stored, failures } = lane;
  const pauseMs = Math.max(lane.pausedUntil - now, 0);
  const isSame = stored !== null && stored.failures === failures && !stored.isPaused && pauseMs === 0;
  return {
    lane: lane.id,
    cursor,
    failures,
    pauseMs,
    mayLag: isSame && cursor - stored.cursor < (isRepeated ? 1 : cursorLagMax),
  };
}
