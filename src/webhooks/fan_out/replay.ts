/**
 * Replay: events from before a subscription was created become deliveries at the end of its lane. Replay covers only events that
 * the owner could read then and may read now. The grant must be as old as the event, and scopes of a grant are never widened. The
 * read from the lane checks the right again.
 *
 * Fan-out and replay apply two complementary conditions to the times of event and subscription (see fan_out.ts), so an event
 * whose fan-out is still to come never counts as missing.
 */

import { sql } from 'kysely';
import type { Transaction } from '../../database/database.ts';
import { mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';
import type { KindArrays } from './fan_out.ts';

/** Maximum events that one step reads. */
const stepEventsMax = 2_000;

/** What a replay covers, and how far it has come. */
export interface ReplayPlace {
  lane: number;
  since: Date;
  until: Date;
  /** The UTC day being read, and the last position read in it. */
  day: string;
  position: string;
}

export interface ReplayStep {
  /** Deliveries created. */
  added: number;
  /** The last position read; null if the day is finished. */
  position: string | null;
}

/**
 * @param kinds kinds of publishers and collections. Built-in events are addressed to certain subscriptions and are
 *   not replayed.
 */
export async function replayStep(
  tx: Transaction,
  kinds: KindArrays,
  { lane, since, until, day, position }: ReplayPlace,
): Promise<ReplayStep> {
  // Serializes replays of this lane, so that the statement below sees what another job has added.
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
            and (s.owner <> 'client' or ${mayOwnSubscriptions(kinds.appSubscriptions)})))
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
