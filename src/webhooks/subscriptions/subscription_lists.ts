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
const listedFilterBytesMax = 2_000_000;

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
    with listed as (
      select id, lead(id) over ids is not null as has_more,
        coalesce(sum(octet_length(filter::text)) over (ids rows between unbounded preceding and 1 preceding), 0) as bytes
      from subscriptions
      where ${listedFor(owner)} and (${after}::uuid is null or id > ${after}::uuid)
      window ids as (order by id)
      order by id limit ${limit}
    )
    -- Each by its id. A plan from when the tables were small would otherwise compare all subscriptions with all lanes.
    select listed.has_more, found.* from listed
    cross join lateral (select ${withFailing} where subscriptions.id = listed.id offset 0) as found
    where listed.bytes < ${listedFilterBytesMax}::int order by listed.id`.execute(db);
  const last = rows.at(-1);
  return { found: rows.map(toSubscription), next: last?.has_more ? last.id : null };
}

/** The lanes of the subscriptions that the owner may see, oldest first. */
export async function listLanes(db: Database, owner: Owner, limit: number): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select lane from subscriptions where ${listedFor(owner)} order by id limit ${limit}`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}
