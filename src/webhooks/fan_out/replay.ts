/**
 * Replay of what was missing: events from before a subscription was made become deliveries of it, at the end of its
 * lane. Only those that its owner could read then and may read now: a grant must be as old as the event, and a grant's
 * scopes are never widened. Whether it may still be sent is asked once more when it is read from the lane.
 *
 * What the fan-out gives and what is missing are two halves of one condition on the times of event and subscription
 * (see fan_out.ts), so that no event is taken for missing whose fan-out is still to come.
 */

import { sql } from 'kysely';
import type { Transaction } from '../../database/database.ts';
import { mayHaveOwn } from '../subscriptions/app_subscriptions.ts';
import type { KindArrays } from './fan_out.ts';

/** Events looked at in one step, at most. */
const stepEventsMax = 2_000;

/** Where a replay has come to, and what it is of. */
export interface ReplayPlace {
  lane: number;
  since: Date;
  until: Date;
  /** The day that is looked through (UTC) and the last position seen in it. */
  day: string;
  position: string;
}

export interface ReplayStep {
  /** Deliveries that were made. */
  added: number;
  /** The last position that was looked at; null where the day is through. */
  position: string | null;
}

/** @param kinds those that publishers and collections make: what the server itself tells is for whom it was told */
export async function replayStep(
  tx: Transaction,
  kinds: KindArrays,
  { lane, since, until, day, position }: ReplayPlace,
): Promise<ReplayStep> {
  // One after the other: what another job of this lane has added is to be seen below.
  await sql`select from lanes where id = ${lane} for update`.execute(tx);
  const { rows } = await sql<{ added: string; last: string | null; seen: string }>`
    with candidate as materialized (
      select position, account_id, kind, created_at, body is null as is_erased
      from events where day = ${day}::date and position > ${position}::bigint
      order by position limit ${stepEventsMax}::int
    ),
    catalogue as materialized (
      select name, string_to_array(patterns, ' ') as patterns,
        case when object is not null then array['read:' || object] end as scopes
      from unnest(${kinds.names}::text[], ${kinds.objects}::text[], ${kinds.patterns}::text[])
        as given (name, object, patterns)
    ),
    present as materialized (
      select event from deliveries where lane = ${lane} and day = ${day}::date
    ),
    missing as materialized (
      select candidate.position, candidate.created_at
      from candidate
      join catalogue on catalogue.name = candidate.kind
      join subscriptions s on s.lane = ${lane} and s.state <> 'ended' and s.kinds && catalogue.patterns
      where not candidate.is_erased
        and candidate.created_at >= ${since} and candidate.created_at < ${until}
        and s.created_at > candidate.created_at + interval '1 second' and candidate.position <= s.created_position
        and exists (select from accounts a where a.id = candidate.account_id and a.disabled_at is null)
        and (s.client_id is null or exists (
          select from clients c
          where c.id = s.client_id and not c.is_stopped
            and (s.owner <> 'client' or ${mayHaveOwn(kinds.appSubscriptions)})))
        and case s.owner
          when 'user' then s.account_id = candidate.account_id
          else exists (
            select from grants g
            where g.account_id = candidate.account_id and g.withdrawn_at is null
              and (g.id = s.grant_id or (s.owner = 'client' and g.client_id = s.client_id))
              and g.created_at <= candidate.created_at
              and (catalogue.scopes is null or g.scopes @> catalogue.scopes))
        end
        and candidate.position not in (select event from present)
    ),
    head as (
      update lanes set next_sequence = next_sequence + (select count(*) from missing)
      where id = ${lane} and exists (select from missing)
      returning next_sequence - (select count(*) from missing) as first
    ),
    added as (
      insert into deliveries (day, lane, sequence, event, created_at)
      select ${day}::date, ${lane}, head.first + each.number - 1, each.position, each.created_at
      from head cross join (
        select position, created_at, row_number() over (order by position) as number from missing
      ) as each
      returning 1
    )
    select (select count(*) from added) as added, (select max(position) from candidate) as last,
      (select count(*) from candidate) as seen`.execute(tx);
  const { added, last, seen } = rows[0] as { added: string; last: string | null; seen: string };
  return { added: Number(added), position: Number(seen) < stepEventsMax ? null : last };
}
