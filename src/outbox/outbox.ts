/**
 * The npm entry `nuncio/outbox`. An application writes an event into a table of its own database, in the transaction of the
 * change. A relay publishes the event to a Nuncio server. Imports no other folder of `src`.
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
