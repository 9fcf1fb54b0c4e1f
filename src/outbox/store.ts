/**
 * The interfaces of an outbox: `RelayStore` for the relay, `RejectedEvents` for operators. Each database has one implementation.
 *
 *   waiting → (published) → deleted
 *           → (rejected by the server) → rejected → (retried) → waiting
 *                                               → (discarded) → deleted
 */

import type { AccountName } from './event.ts';

export interface WaitingEvent {
  /** Orders the events of an outbox. */
  position: string;
  id: string;
  kind: string;
  account: AccountName;
  /** JSON. */
  body: string;
}

export interface RejectedEvent {
  /** Orders the events of an outbox. Pass the last one as `after` to read the next page. */
  position: string;
  id: string;
  kind: string;
  account: AccountName;
  body: unknown;
  /** Why the server rejected the event. */
  reason: string;
  createdAt: Date;
  rejectedAt: Date;
}

export interface OutboxStats {
  /** Number of events that are not published yet. Counting stops at 100,000. */
  waiting: number;
  /** Number of rejected events. Counting stops at 100,000. */
  rejected: number;
  /** How long the first waiting event has waited, in milliseconds; null if no event waits. */
  oldestMs: number | null;
}

/** Maximum number of rows that `stats` counts. */
export const countedMax = 100_000;
/** Default and maximum page size of `rejected.list`. */
export const pageDefault = 100;
export const pageMax = 1_000;

/** The operator's interface to rejected events. */
export interface RejectedEvents {
  /** Lists rejected events in order, starting after the position `after`. `limit` is 100 by default; the maximum is 1,000. */
  list(page?: { limit?: number; after?: string }): Promise<RejectedEvent[]>;
  /**
   * Queues a rejected event again at its old position, with a new body if `corrected` is set.
   * @returns whether the outbox had such an event
   */
  retry(id: string, corrected?: { body: unknown }): Promise<boolean>;
  /** Queues all rejected events again. @returns their number */
  retryAll(): Promise<number>;
  /** Deletes a rejected event. @returns whether the outbox had such an event */
  discard(id: string): Promise<boolean>;
}

/** Limits of one read. The first event is returned whatever its size. */
export interface ReadLimits {
  events: number;
  bytes: number;
}

/** The relay's interface to an outbox. Statements run outside the application's transactions. */
export interface RelayStore {
  hasWaiting(): Promise<boolean>;
  /** Takes or renews the lease. @returns false while another relay has it */
  hold(holder: string, leaseMs: number): Promise<boolean>;
  release(holder: string): Promise<void>;
  /** Returns the first waiting events. */
  read(limits: ReadLimits): Promise<WaitingEvent[]>;
  /** Deletes published events. */
  forget(positions: readonly string[]): Promise<void>;
  /** Marks events as rejected if `holder` still has the lease. */
  reject(holder: string, rejections: readonly { position: string; reason: string }[]): Promise<void>;
}

export interface Outbox extends RelayStore {
  /** The SQL that creates the tables, for use in your own migrations. */
  readonly sql: string;
  /** Creates the tables if they do not exist. Several processes can call it concurrently. */
  setUp(): Promise<void>;
  readonly rejected: RejectedEvents;
  stats(): Promise<OutboxStats>;
}
