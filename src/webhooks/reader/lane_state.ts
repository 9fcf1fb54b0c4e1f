/** What a reader must know of a lane: whether it has more, and whether it may be read. */

import { type RawBuilder, sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { AppSubscriptions } from '../subscriptions/app_subscription_modes.ts';
import { mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';

/** Whether the subscription `s` is active, and so are its account and client. */
export function isOpen(appSubscriptions: AppSubscriptions): RawBuilder<boolean> {
  return sql<boolean>`(s.state = 'active'
    and not exists (select from accounts a where a.id = s.account_id and a.disabled_at is not null)
    and not exists (
      select from clients c where c.id = s.client_id
        and (c.is_stopped or (s.owner = 'client' and not ${mayOwnSubscriptions(appSubscriptions)}))))`;
}

/**
 * Finds the lanes that have a delivery after a sequence, or may not be read. Usually there are few of them among many.
 * @param watched the sequence of each lane
 * @returns their newest sequences; infinity for lanes that are closed or gone
 */
export async function findReadyLanes(
  db: Database,
  watched: ReadonlyMap<number, number>,
  appSubscriptions: AppSubscriptions,
): Promise<Map<number, number>> {
  const { rows } = await sql<{ lane: string; head: string | null }>`
    select given.lane, open.head
    from unnest(${bigintArray([...watched.keys()])}::bigint[], ${bigintArray([...watched.values()])}::bigint[]) as given (lane, after)
    left join lateral (
      select newest_sequence(l) as head from lanes l join subscriptions s on s.lane = l.id
      where l.id = given.lane and ${isOpen(appSubscriptions)}
    ) as open on true
    where open.head is null or open.head > given.after`.execute(db);
  return new Map(rows.map(({ lane, head }) => [Number(lane), Number(head ?? Number.POSITIVE_INFINITY)]));
}
