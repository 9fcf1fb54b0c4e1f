/**
 * Holds all that is not sent, in a database that was restored from a backup: the server that the backup is of has sent most of it
 * since. What is held is sent only on request.
 *
 *   delivery without an attempt, pending retry → held → (resend or recovery by its owner) → pending
 *   event without deliveries → parked → (nuncio parked retry) → in the outbox
 *   running recovery → cancelled
 */

import { sql } from 'kysely';
import type { Transaction } from '../database/database.ts';
import { parkAllEvents } from './fan_out/parked_events.ts';

export interface HeldCounts {
  deliveries: number;
  /** Events without deliveries. */
  events: number;
  recoveries: number;
}

/**
 * Only while no server runs: nodes would overwrite the state of their lanes.
 * @param reason why events are parked, one sentence
 */
export async function holdUnsent(tx: Transaction, reason: string): Promise<HeldCounts> {
  await sql`delete from nodes`.execute(tx);
  const { rows: ranges } = await sql<{ first: string; last: string }>`
    with waiting as (
      select p.lane, p.cursor, newest_sequence(l) as last
      from lane_progress p join lanes l on l.id = p.lane join subscriptions s on s.lane = p.lane
      -- What a subscriber pulls is not sent.
      where s.state <> 'ended' and not p.is_pulled
    ),
    held as (
      insert into held_ranges (lane, first, last)
      select lane, cursor + 1, last from waiting where last > cursor
      on conflict (lane, first) do update set last = greatest(held_ranges.last, excluded.last)
      returning first, last
    ),
    moved as (
      update lane_progress p
      set cursor = greatest(p.cursor, w.last), owner = null, due_at = null, paused_until = null, failures = 0, failing_since = null
      from waiting w where p.lane = w.lane
    )
    select first, last from held`.execute(tx);
  const { rows: retries } = await sql`
    update retries
    set state = case when state = 'pending' then 'held' else state end, due_at = null, resends = 0
    where state = 'pending' or due_at is not null
    returning 1`.execute(tx);
  const { rows: recoveries } = await sql`
    update recoveries set state = 'cancelled', updated_at = now() where state = 'running' returning 1`.execute(
    tx,
  );
  // The server that the backup is of has told those whose subscription was revoked. The others lost events.
  await sql`
    update agent_subscriptions set last_secret = null, gap_at = case when ended_at is null and mode = 'webhook' then now() end
    where last_secret is not null or (ended_at is null and mode = 'webhook')`.execute(tx);
  const events = await parkAllEvents(tx, reason);
  const added = ranges.reduce((sum, { first, last }) => sum + Number(last) - Number(first) + 1, 0);
  return { deliveries: added + retries.length, events, recoveries: recoveries.length };
}
