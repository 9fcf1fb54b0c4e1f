/** The metrics of mails. */

import { Counter, Gauge, type Registry } from 'prom-client';
import type { Database } from '../database/database.ts';
import { countWaiting } from './outbox.ts';

const countedMax = 10_000;

/** Counts an attempt by its outcome. */
export type MailMetrics = (outcome: 'sent' | 'failed' | 'refused' | 'given_up' | 'dropped') => void;

export function createMailMetrics(registry: Registry, db: Database): MailMetrics {
  const counter = new Counter({
    name: 'nuncio_mails_total',
    help: 'Attempts to send a mail, by outcome: sent, failed (will be retried), refused by the SMTP server, given_up after the last retry, dropped because nobody may get it any more.',
    labelNames: ['outcome'],
    registers: [registry],
  });
  for (const outcome of ['sent', 'failed', 'refused', 'given_up', 'dropped']) counter.inc({ outcome }, 0);
  new Gauge({
    name: 'nuncio_mails_waiting',
    help: `Mails that wait to be sent, in the whole deployment; at most ${countedMax}.`,
    registers: [registry],
    async collect() {
      this.set(await countWaiting(db, countedMax));
    },
  });
  return (outcome) => counter.inc({ outcome });
}
