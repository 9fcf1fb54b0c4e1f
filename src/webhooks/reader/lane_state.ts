/** What a reader must know of a lane: how far it goes, and whether it may be read. */

import { type RawBuilder, sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import { type AppSubscriptions, mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';

/** Whether the subscription `s` is active, and so are its account and client. */
export function isOpen(appSubscriptions: AppSubscriptions): RawBuilder<boolean> {
  return sql<boolean>`(s.state = 'active'
    and not exists (select from accounts a where a.id = s.account_id and a.disabled_at is not null)
    and not exists (
      select from clients c where c.id = s.client_id
        and (c.is_stopped or (s.owner = 'client' and not ${mayOwnSubscriptions(appSubscriptions)}))))`;
}

/** Reads the newest sequence of lanes that may be read. Lanes that are closed or gone are left out. */
export async function readHeads(
  db: Database,
  lanes: readonly number[],
  appSubscriptions: AppSubscriptions,
): Promise<Map<number, number>> {
  const { rows } = await sql<{ lane: string; head: string }>`
    select l.id as lane, l.next_sequence - 1 as head
    from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
    join lanes l on l.id = given.lane
    join subscriptions s on s.lane = l.id
    where ${isOpen(appSubscriptions)}`.execute(db);
  return new Map(rows.map(({ lane, head }) => [Number(lane), Number(head)]));
}
