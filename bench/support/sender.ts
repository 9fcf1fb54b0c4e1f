/** What the senders to compare with have in common: a queue in PostgreSQL, one job for each delivery. */

import type { Delivery } from './signed_post.ts';

export interface Sender {
  /** Adds the jobs of these deliveries, in one transaction; they are durable when this resolves. */
  publish(deliveries: Delivery[]): Promise<void>;
  /** Starts to take jobs. */
  start(): Promise<void>;
  /** How many deliveries are recorded as made, in the database. */
  recorded(): Promise<number>;
  /** Finishes what is in flight. */
  stop(): Promise<void>;
}

/**
 * Prepares a sender, without taking jobs yet.
 * @param databaseUrl an empty database
 * @param origin the subscriber's
 */
export type OpenSender<Settings> = (
  databaseUrl: string,
  origin: string,
  settings: Settings,
) => Promise<Sender>;
