/**
 * What a relay needs of an outbox, and what an operator does with it. One implementation for each database.
 *
 *   waiting → (published) → deleted
 *           → (rejected by the server) → rejected → (retried) → waiting
 *                                               → (discarded) → deleted
 */

import type { AccountName } from './event.ts';

export interface WaitingEvent {
  /** Its place in the order. */
  position: string;
  id: string;
  kind: string;
  account: AccountName;
  /** JSON. */
  body: string;
}

export interface RejectedEvent {
  /** Its place in the order: where the next page begins. */
  position: string;
  id: string;
  kind: string;
  account: AccountName;
  body: unknown;
  /** What the server says of it. */
  reason: string;
  createdAt: Date;
  rejectedAt: Date;
}

export interface OutboxStats {
  /** Events that wait to be published; counted up to 100,000. */
  waiting: number;
  /** Events that were rejected and wait for an operator; counted up to 100,000. */
  rejected: number;
  /** How long the first event in the order has waited; null where none waits. */
  oldestMs: number | null;
}

/** Rows that statistics count at most. */
export const countedMax = 100_000;
/** Rejected events of one page, by default and at most. */
export const pageDefault = 100;
export const pageMax = 1_000;

/** The operator's side of an outbox. */
export interface RejectedEvents {
  /** Rejected events in their order, `limit` of them (default 100, at most 1,000), `after` a position. */
  list(page?: { limit?: number; after?: string }): Promise<RejectedEvent[]>;
  /**
   * Lets a rejected event wait again, at its old place, with another body where one is given.
   * @returns whether there was such an event
   */
  retry(id: string, corrected?: { body: unknown }): Promise<boolean>;
  /** Lets all rejected events wait again. @returns how many */
  retryAll(): Promise<number>;
  /** Deletes a rejected event. @returns whether there was such an event */
  discard(id: string): Promise<boolean>;
}

/** Which part of the outbox one read returns at most. The first event is always returned. */
export interface ReadLimits {
  events: number;
  bytes: number;
}

/** The relay's side of an outbox. Statements run outside of the application's transactions. */
export interface RelayStore {
  hasWaiting(): Promise<boolean>;
  /** Takes the lease, or renews it. @returns false while another relay holds it */
  hold(holder: string, leaseMs: number): Promise<boolean>;
  release(holder: string): Promise<void>;
  /** The first waiting events. */
  read(limits: ReadLimits): Promise<WaitingEvent[]>;
  /** Deletes events that were published. */
  forget(positions: readonly string[]): Promise<void>;
  /** Marks events as rejected, if the holder still has the lease. */
  reject(holder: string, rejections: readonly { position: string; reason: string }[]): Promise<void>;
}

export interface Outbox extends RelayStore {
  /** The statements that create the tables, for migrations of your own. */
  readonly sql: string;
  /** Creates the tables where they do not exist. Several processes may call it at once. */
  setUp(): Promise<void>;
  readonly rejected: RejectedEvents;
  stats(): Promise<OutboxStats>;
}
