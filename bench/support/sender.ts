/** The interface of the senders compared with Nuncio: a queue in PostgreSQL, one job per delivery. */

import type { Delivery } from './signed_post.ts';

export interface Sender {
  /** Adds the jobs of these deliveries in one transaction. Resolves when they are durable. */
  publish(deliveries: Delivery[]): Promise<void>;
  /** Starts taking jobs. */
  start(): Promise<void>;
  /** Returns the number of deliveries recorded as sent in the database. */
  recorded(): Promise<number>;
  /** Finishes what is in flight. */
  stop(): Promise<void>;
}

/**
 * Prepares a sender without starting it.
 * @param databaseUrl an empty database
 * @param origin the origin of the subscriber
 */
export type OpenSender<Settings> = (
  databaseUrl: string,
  origin: string,
  settings: Settings,
) => Promise<Sender>;
