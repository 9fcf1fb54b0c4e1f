/**
 * Replay: events from before a subscription was created become deliveries at the end of its lane. Replay covers only events that
 * the owner could read then and may read now. The grant must be as old as the event, and scopes of a grant are never widened. The
 * read from the lane checks the right again.
 *
 * Fan-out and replay apply two complementary conditions to the times of event and subscription (see fan_out.ts), so an event
 * whose fan-out is still to come never counts as missing, and only an earlier replay can have added it already.
 *
 * A subscription of an agent may continue where another one ended, so nothing may be missing between the two: its replay also takes
 * the events around its creation, up to `until`. Fan-out may add some of them as well; agents know an event by its id.
 *
 * A step searches without a lock. It locks the lane's row in `lanes` only to add what it found, and never waits for that lock.
 *
 * A step takes at most as many events as a fan-out pass, and what it takes costs at most as many deliveries (outbox_selection.ts).
 * Evaluating a filter means parsing the body, which takes longer than all else, so the body's length counts too.
 */

import { sql } from 'kysely';
import type { Transaction } from '../../database/database.ts';
import { mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';
import type { KindArrays } from './fan_out.ts';
import { bytesPerDelivery, passLimits, subscriptionCost } from './outbox_selection.ts';

/** What a replay covers, and how far it has come. */
export interface ReplayPlace {
  lane: number;
  since: Date;
  until: Date;
  /** The UTC day being read, and the last position read in it. */
  day: string;
  position: string;
}

/** Whether a grant `g` is as old as the event and allows to read it. */
const mayRead = sql`g.withdrawn_at is null and g.created_at <= candidate.created_at
              and (catalogue.scopes is null or g.scopes @> catalogue.scopes)`;

/** Whether an agent's subscription has the lane. */
function isAgents(lane: number) {
  return sql`exists (select from agent_subscriptions a join subscriptions of_agent on of_agent.id = a.id where of_agent.lane = ${lane})`;
}

/**
 * Reads some events, adds those that are missing, and writes the progress of the recovery. It is one statement, so that the lane is
 * not locked while this process is busy.
 * @param id the recovery, whose row the transaction has locked
 * @param kinds kinds of publishers and collections. Built-in events are addressed to certain subscriptions and are
 *   not replayed.
 * @returns the number of deliveries added. The caller makes the lane due after the commit.
 * @throws Error `lock_not_available` if the lane is locked, or `unique_violation` if another recovery has just added the same event
 */
export async function replayStep(
  tx: Transaction,
  id: string,
  kinds: KindArrays,
  { lane, since, until, day, position }: ReplayPlace,
): Promise<number> {
  const { rows } = await sql<{ added: number }>`
    with candidate as materialized (
      -- The length is known without reading the body. It is null after erasure.
      select position, account_id, kind, created_at, octet_length(body) as bytes
      from events where day = ${day}::date and position > ${position}::bigint
        and (position <= (select created_position from subscriptions where lane = ${lane}) or ${isAgents(lane)})
      order by position limit ${passLimits.events}::int
    ),
    catalogue as materialized (
      select name, string_to_array(patterns, ' ') as patterns,
        case when object is not null then array['read:' || object] end as scopes
      from unnest(${kinds.names}::text[], ${kinds.objects}::text[], ${kinds.patterns}::text[])
        as given (name, object, patterns)
    ),
    readable as materialized (
      select candidate.position, candidate.created_at,
        ${subscriptionCost} + case when s.filter_digest is null then 0 else bytes / ${sql.lit(bytesPerDelivery)} end as cost
      from candidate
      join catalogue on catalogue.name = candidate.kind
      join subscriptions s on s.lane = ${lane} and s.state <> 'ended' and s.kinds && catalogue.patterns
      where candidate.bytes is not null
        and candidate.created_at >= ${since} and candidate.created_at < ${until}
        and (s.created_at > candidate.created_at + interval '1 second' or ${isAgents(lane)})
        and exists (select from accounts a where a.id = candidate.account_id and a.disabled_at is null)
        and (s.client_id is null or exists (
          select from clients c
          where c.id = s.client_id and not c.is_stopped
            and (s.owner <> 'client' or ${mayOwnSubscriptions(kinds.appSubscriptions)})))
        -- Null if the owner is a client.
        and (s.account_id is null or s.account_id = candidate.account_id)
        -- A look-up for each kind of owner. One for both would read all grants of the account, or of the app, for each event.
        and case s.owner
          when 'user' then true
          when 'grant' then exists (select from grants g where g.id = s.grant_id and ${mayRead})
          else exists (
            select from grants g
            where g.account_id = candidate.account_id and g.client_id = s.client_id and ${mayRead})
        end
        -- A look-up in the index of replayed deliveries, because of the offset.
        and not exists (
          select from deliveries d
          where d.day = ${day}::date and d.lane = ${lane} and d.event = candidate.position and d.replayed offset 0)
    ),
    counted as materialized (
      -- The first event is taken, whatever it costs.
      select position, created_at, total <= ${passLimits.deliveries}::int or total = cost as is_taken
      from (select *, sum(cost) over (order by position) as total from readable) as each
    ),
    missing as materialized (
      select counted.position, counted.created_at
      from counted join subscriptions s on s.lane = ${lane}
      where is_taken and (s.filter_digest is null or coalesce((
        select jsonb_path_match(body_as_json(body), s.filter_path, '{}', true) from events
        where day = ${day}::date and position = counted.position), false))
    ),
    seen as materialized (
      select case when taken.are_all then passed.last else taken.last end as last,
        taken.are_all and passed.count < ${passLimits.events}::int as is_end, (select count(*) from missing) as added
      from (select max(position) as last, count(*) from candidate) as passed,
        (select max(position) filter (where is_taken) as last, coalesce(bool_and(is_taken), true) as are_all from counted) as taken
    ),
    locked as materialized (
      select lanes.id, seen.added from seen join lanes on lanes.id = ${lane}
      where seen.added > 0 for update of lanes nowait
    ),
    head as (
      update lanes set next_sequence = next_sequence + locked.added
      from locked where lanes.id = locked.id
      returning next_sequence - locked.added as first
    ),
    added as (
      insert into deliveries (day, lane, sequence, event, created_at, replayed)
      select ${day}::date, ${lane}, head.first + each.number - 1, each.position, each.created_at, true
      from head cross join (
        select position, created_at, row_number() over (order by position) as number from missing
      ) as each
    ),
    progress as (
      update recoveries set
        added = recoveries.added + seen.added, updated_at = now(),
        missing_day = ${day}::date + seen.is_end::int,
        missing_position = case when seen.is_end then 0 else seen.last end,
        state = case when seen.is_end and ${day}::date >= (
          select (least(s.created_at + interval '1 minute', recoveries.until) at time zone 'utc')::date from subscriptions s
          where s.lane = recoveries.lane
        ) then 'done' else 'running' end
      from seen where recoveries.id = ${id}
    )
    select seen.added::int as added, case when seen.added > 0 then notify_lane_changed(${lane}) end from seen`.execute(
    tx,
  );
  return rows[0]?.added ?? 0;
}
