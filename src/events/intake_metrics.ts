/** Metrics of the intake: the results of events that were published by SQL. */

import { Counter, Gauge, type Registry } from 'prom-client';
import type { Database } from '../database/database.ts';
import { readInboxAge } from './inbox.ts';
import type { Ingested } from './ingest.ts';
import { countRejected } from './rejected_events.ts';

/** @returns a function that counts the results of a pass */
export function createIntakeMetrics(registry: Registry, db: Database): (taken: Ingested) => void {
  const events = new Counter({
    name: 'nuncio_inbox_events_total',
    help: 'Events published by SQL that this node has taken in, by result: stored, repeated, rejected.',
    labelNames: ['result'],
    registers: [registry],
  });
  readAt(
    registry,
    'nuncio_inbox_age_seconds',
    'Seconds that the oldest event published by SQL has waited in the inbox, in the whole deployment.',
    () => readInboxAge(db),
  );
  readAt(
    registry,
    'nuncio_events_rejected',
    'Events published by SQL that were rejected and wait for an operator, in the whole deployment.',
    () => countRejected(db),
  );
  return ({ stored, repeated, rejected }) => {
    events.inc({ result: 'stored' }, stored.length);
    events.inc({ result: 'repeated' }, repeated);
    events.inc({ result: 'rejected' }, rejected.length);
  };
}

/** Registers a gauge that is read from the database. It has no value while the database does not respond. */
function readAt(registry: Registry, name: string, help: string, read: () => Promise<number>): void {
  new Gauge({
    name,
    help,
    registers: [registry],
    async collect() {
      try {
        this.set(await read());
      } catch {
        this.reset();
      }
    },
  });
}
