/**
 * How far a subscriber says that it has read. Nothing depends on it: it is shown, and measured. Owns the table
 * `acknowledgements`.
 */

import { sql } from 'kysely';
import { Gauge, type Registry } from 'prom-client';
import type { Database } from '../../database/database.ts';

export interface Acknowledgement {
  sequence: number;
  at: Date;
}

export type AcknowledgeResult =
  | ({ kind: 'acknowledged' } & Acknowledgement)
  /** There is no such delivery yet. */
  | { kind: 'ahead'; head: number };

/** Records that everything up to `sequence` was read. An earlier sequence than before changes nothing. */
export async function acknowledge(db: Database, lane: number, sequence: number): Promise<AcknowledgeResult> {
  const { rows } = await sql<{ head: string; sequence: string | null; at: Date | null }>`
    with lane as (select id, newest_sequence(lanes) as head from lanes where id = ${lane}::bigint),
    stored as (
      insert into acknowledgements (lane, sequence)
      select id, ${sequence}::bigint from lane where head >= ${sequence}::bigint
      on conflict (lane) do update set
        at = case when excluded.sequence > acknowledgements.sequence then now() else acknowledgements.at end,
        sequence = greatest(acknowledgements.sequence, excluded.sequence)
      returning sequence, at
    )
    select lane.head, stored.sequence, stored.at from lane left join stored on true`.execute(db);
  const [row = { head: '0', sequence: null, at: null }] = rows;
  return row.sequence === null || row.at === null
    ? { kind: 'ahead', head: Number(row.head) }
    : { kind: 'acknowledged', sequence: Number(row.sequence), at: row.at };
}

/** Measures how far subscribers that acknowledge are behind. */
export function addAcknowledgementMetrics(registry: Registry, db: Database): void {
  new Gauge({
    name: 'nuncio_unacknowledged_deliveries',
    help: 'Deliveries after the last acknowledged one, of active subscriptions that acknowledge: of all, and the most of one. In the whole deployment.',
    labelNames: ['of'],
    registers: [registry],
    async collect() {
      this.reset();
      const { rows } = await sql<{ all: number; most: number }>`
        select coalesce(sum(behind), 0)::float8 as all, coalesce(max(behind), 0)::float8 as most
        from (
          select newest_sequence(l) - a.sequence as behind
          from acknowledgements a
          join subscriptions s on s.lane = a.lane and s.state = 'active'
          join lanes l on l.id = a.lane
        ) as each`
        .execute(db)
        .catch(() => ({ rows: [] }));
      if (rows[0] === undefined) return;
      this.set({ of: 'all' }, rows[0].all);
      this.set({ of: 'one' }, rows[0].most);
    },
  });
}
