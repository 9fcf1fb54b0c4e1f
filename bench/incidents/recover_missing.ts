/** A recovery of missing deliveries on a lane with a long log of today. */

import { sql } from 'kysely';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident } from './row.ts';
import { finish, measureAlone, measureIncident, type Stage, waitUntil, withStage } from './stage.ts';

/** Rows of one statement. */
const atOnce = 100_000;
/** Events from before the subscription. */
const missingEvents = 20_000;

/** `POST /subscriptions/<id>/recover` with `missing`, beside 1,000,000 deliveries. */
export const recoverMissing: Incident = (size) =>
  withStage(size, async (stage) => {
    const [member] = (await makeCrowd(stage.bench, {
      users: 1,
      subscriptionsOfEach: 1,
      urlOf: () => stage.othersUrl,
    })) as [CrowdMember];
    // Fewer deliveries fit in the database's memory for one statement.
    const deliveries = 1_000_000;
    await addEvents(stage, member, missingEvents, 120);
    await addDeliveries(stage, member, deliveries);
    let recovery: Recovery = { state: 'running', resent: 0, added: 0 };
    await measureAlone(stage);
    await measureIncident(stage, async () => {
      const read = await startRecovery(stage, member, ['missing']);
      await waitUntil(size.of(30, 600), async () => {
        recovery = await read();
        return recovery.state !== 'running';
      });
    });
    const { state, added } = recovery;
    const note = `${deliveries} deliveries; the recovery is ${state}, ${added} of ${missingEvents} added`;
    return [await finish(stage, 'recover-missing', 250, [], note)];
  });

interface Recovery {
  state: string;
  resent: number;
  added: number;
}

/** Recovers the deliveries of the last three hours in some states. @returns reads the recovery */
export async function startRecovery(
  { bench, tokenOf }: Stage,
  member: CrowdMember,
  states: readonly string[],
): Promise<() => Promise<Recovery>> {
  const headers = {
    authorization: `Bearer ${await tokenOf(member)}`,
    'content-type': 'application/json',
  };
  const since = new Date(Date.now() - 10_800_000).toISOString();
  const url = `${bench.baseUrl}/subscriptions/${member.subscriptions[0]}`;
  const body = JSON.stringify({ since, status: states });
  const response = await fetch(`${url}/recover`, { method: 'POST', headers, body });
  const started = (await response.json()) as { id: string };
  if (response.status !== 202) throw new Error(`recover gave ${response.status}`);
  return async () => {
    const read = await fetch(`${url}/recoveries/${started.id}`, { headers });
    return (await read.json()) as Recovery;
  };
}

/** Adds events of the account without deliveries. */
async function addEvents(
  { bench }: Stage,
  { accountId, lanes }: CrowdMember,
  count: number,
  minutesAgo: number,
): Promise<void> {
  await sql`
    insert into events (id, account_id, kind, body, created_at)
    select gen_random_uuid()::text, ${accountId}, 'push', '{}', now() - make_interval(mins => ${minutesAgo}::int)
    from generate_series(1, ${count}::int)`.execute(bench.db);
  await sql`
    update subscriptions set created_at = now() - interval '1 hour',
      created_position = pg_sequence_last_value('event_positions')
    where lane = ${lanes[0]}`.execute(bench.db);
}

/** Adds events with deliveries that were sent. */
async function addDeliveries(
  { bench }: Stage,
  { accountId, lanes }: CrowdMember,
  count: number,
): Promise<void> {
  const lane = lanes[0];
  for (let from = 0; from < count; from += atOnce) {
    const size = Math.min(atOnce, count - from);
    await sql`
      with added as (
        insert into events (id, account_id, kind, body)
        select gen_random_uuid()::text, ${accountId}, 'push', '{}' from generate_series(1, ${size}::int)
        returning day, position
      )
      insert into deliveries (day, lane, sequence, event)
      select day, ${lane}::bigint, ${from}::bigint + row_number() over (order by position), position from added`.execute(
      bench.db,
    );
  }
  await sql`update lanes set next_sequence = ${count + 1}::bigint where id = ${lane}`.execute(bench.db);
  await sql`update lane_progress set cursor = ${count}::bigint where lane = ${lane}`.execute(bench.db);
  await sql`analyze events, deliveries`.execute(bench.db);
}
