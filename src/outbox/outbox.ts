/**
 * `nuncio/outbox`, published on its own: an application writes an event in the transaction of the change, into a table of its own
 * database, and a relay publishes it to a Nuncio server elsewhere. Imports nothing of the rest.
 */

export type { AccountName, NewEvent } from './event.ts';
export {
  type PostgresConnection,
  type PostgresOutbox,
  type PostgresOutboxOptions,
  postgresOutbox,
} from './postgres.ts';
export { createRelay, type Relay, type RelayResult, type StopOptions } from './relay.ts';
export type { RelayOptions, RelayPublisher } from './relay_options.ts';
export { type SqliteOutbox, type SqliteOutboxOptions, sqliteOutbox } from './sqlite.ts';
export type { SqliteConnection } from './sqlite_transaction.ts';
export type {
  Outbox,
  OutboxStats,
  ReadLimits,
  RejectedEvent,
  RejectedEvents,
  RelayStore,
  WaitingEvent,
} from './store.ts';
