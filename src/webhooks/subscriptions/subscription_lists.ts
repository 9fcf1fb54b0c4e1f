/** Lists of an owner's subscriptions. */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import type { Owner } from './owner.ts';
import {
  listedFor,
  type Subscription,
  type SubscriptionRow,
  toSubscription,
  withFailing,
} from './subscription.ts';

/** Filters of a page, before that of its last subscription: all clients of a node share its memory and its thread. */
const listedFilterBytesMax = 262_144;

/**
 * Lists the subscriptions that the owner may see, oldest first.
 * @param after id of the last subscription on the previous page
 * @returns a page, which is short if its filters are large, and the id that the next page follows; null if there is none
 */
export async function listSubscriptions(
  db: Database,
  owner: Owner,
  limit: number,
  after: string | null,
): Promise<{ found: Subscription[]; next: string | null }> {
  const { rows } = await sql<SubscriptionRow & { has_more: boolean }>`
    with recursive listed as materialized (
      select id, row_number() over (order by id) as position from subscriptions
      where ${listedFor(owner)} and (${after}::uuid is null or id > ${after}::uuid)
      order by id limit ${limit}::int + 1
    ),
    given as materialized (select array_agg(id order by position) as ids from listed),
    -- Measures no filters beyond the page.
    page (position, bytes) as (
      select 1, 0::bigint
      union all
      select position + 1, bytes + coalesce((
        select octet_length(filter::text) from subscriptions where id = ids[position]), 0)
      from page, given where position < least(cardinality(ids), ${limit}::int) and bytes < ${listedFilterBytesMax}::int
    )
    -- Each by its id. A plan from when the tables were small would otherwise compare all subscriptions with all lanes.
    select position < cardinality(ids) as has_more, found.* from page cross join given
    cross join lateral (select ${withFailing} where subscriptions.id = ids[position] offset 0) as found
    where bytes < ${listedFilterBytesMax}::int order by position`.execute(db);
  const last = rows.at(-1);
  return { found: rows.map(toSubscription), next: last?.has_more ? last.id : null };
}

/** The lanes of the subscriptions that the owner may see, oldest first. */
export async function listLanes(db: Database, owner: Owner, limit: number): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select lane from subscriptions where ${listedFor(owner)} order by id limit ${limit}`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}
