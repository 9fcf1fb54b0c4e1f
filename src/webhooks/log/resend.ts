/** Requests by hand: sending a delivery again, sending a test event, and waking a lane. */

import { sql } from 'kysely';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { pingName } from '../../events/built_in_names.ts';
import { recordEvent } from '../../events/event.ts';
import { deliveryId, deliveryIdPrefix } from '../subscriptions/delivery_id.ts';
import type { Owner, Subscription } from '../subscriptions/subscription.ts';
import { attemptsMax, type DeliveryState, epochTagOf, locateDelivery, selectDeliveries } from './delivery.ts';

export type ResendResult = 'due' | 'not-found' | 'disabled' | 'cancelled' | 'pulled' | 'attempted';

/**
 * Schedules a delivery to be sent again, whatever its state. One that waits for a retry is sent now. One that waits for its first
 * attempt is sent anyway, also if that attempt is in flight or not yet recorded.
 * @returns `attempted` if it has, or waits for, the most attempts
 */
export async function resendDelivery(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<ResendResult> {
  return inTransaction(db, async (tx) => {
    const place = await locateDelivery(tx, owner, id);
    if (place === undefined) return 'not-found';
    const { subscription, sequence } = place;
    const { rows } = await sql<{ day: string; state: DeliveryState; attempt_count: string; waiting: number }>`
      select day::text, state, attempt_count,
        coalesce((select resends from retries where lane = d.lane and sequence = d.sequence), 0) as waiting
      from (${selectDeliveries(subscription.lane, sql`d.sequence = ${sequence}`)}) as d`.execute(tx);
    const row = rows[0];
    if (row === undefined) return 'not-found';
    if (subscription.isPulled) return 'pulled';
    if (subscription.state !== 'active') return 'disabled';
    if (row.state === 'cancelled') return 'cancelled';
    if (row.state === 'pending' && row.attempt_count === '0') return 'due';
    if (Number(row.attempt_count) + row.waiting >= attemptsMax) return 'attempted';
    const base = row.state === 'held' ? 'pending' : row.state;
    // Locks the lane before the retry, as a statement does that records outcomes.
    await wakeLane(tx, subscription.lane);
    await sql`
      insert into retries (lane, sequence, day, state, attempts, due_at, resends)
      values (${subscription.lane}, ${sequence}, ${row.day}::date, ${base}, least(${row.attempt_count}::bigint, 32767), now(), 1)
      on conflict (lane, sequence) do update set
        resends = least(retries.resends + 1, 32767), due_at = now(),
        state = case when retries.state = 'held' then 'pending' else retries.state end`.execute(tx);
    // An attempt that finished in between was not counted above. From here on, every outcome is written with this row
    // in place.
    await sql`
      update retries set attempts = greatest(attempts, (
        select least(count(*), 32767) from attempts a
        where a.lane = retries.lane and a.sequence = retries.sequence and a.day = retries.day))
      where lane = ${subscription.lane} and sequence = ${sequence}`.execute(tx);
    return 'due';
  });
}

/**
 * Sends an event to one subscription only: a `ping`, or the example of a kind, which then belongs to no account.
 * @returns the delivery's id
 */
export async function sendTest(
  db: Database | Transaction,
  subscription: Subscription,
  example: { kind: string; version: string | null; body: unknown } | null,
): Promise<string> {
  return inTransaction(db, async (tx) => {
    const ping = { kind: pingName, body: { subscription: subscription.id, at: new Date().toISOString() } };
    const event = await recordEvent(tx, { accountId: null, ...(example ?? ping) });
    const { rows } = await sql<{ sequence: string; epoch_tag: number }>`
      with head as (
        update lanes set next_sequence = next_sequence + 1 where id = ${subscription.lane}
        returning id, next_sequence - 1 as sequence
      )
      insert into deliveries (day, lane, sequence, event)
      select ${event.day}::date, id, sequence, ${event.position}::bigint from head
      returning sequence, ${epochTagOf(sql`lane`, sql`sequence`)} as epoch_tag`.execute(tx);
    await wakeLane(tx, subscription.lane);
    const { sequence, epoch_tag } = rows[0] as { sequence: string; epoch_tag: number };
    return deliveryId(deliveryIdPrefix(subscription.lane, subscription.id, epoch_tag), Number(sequence));
  });
}

/** Makes a lane due, unless its subscriber pulls, and notifies the node that leases it and waiting readers. */
export async function wakeLane(db: Database | Transaction, lane: number): Promise<void> {
  await sql`
    -- Also set if the lane is leased, because the node may be releasing it right now.
    update lane_progress set due_at = greatest(now(), coalesce(paused_until, now()))
    where lane = ${lane} and not is_pulled`.execute(db);
  await sql`select notify_lane_changed(${lane})`.execute(db);
}
