/** An account whose events make the statement of the fan-out fail. */

import { sql } from 'kysely';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident, Row, Size } from './row.ts';
import { finish, measureAlone, measureIncident, type Stage, waitUntil, withStage } from './stage.ts';

const codes = ['23505', 'P0001', 'XX001'];
/** Seconds until the event must be parked. */
const parkSeconds = 20;

/** Once for each SQLSTATE. The event is parked, the others continue, and the server stays ready. */
export const badEvent: Incident = async (size) => {
  const rows: Row[] = [];
  for (const code of codes) rows.push(await withStage(size, (stage) => measureCode(stage, size, code)));
  return rows;
};

async function measureCode(stage: Stage, size: Size, code: string): Promise<Row> {
  const { bench, othersUrl, publish } = stage;
  const [bad] = (await makeCrowd(bench, {
    users: 1,
    subscriptionsOfEach: 1,
    urlOf: () => othersUrl,
  })) as [CrowdMember];
  await failDeliveries(stage, bad.lanes[0] as number, code);
  let unready = 0;
  await measureAlone(stage);
  const watching = setInterval(() => {
    fetch(`${bench.baseUrl}/readyz`).then(
      ({ status }) => {
        if (status !== 200) unready += 1;
      },
      () => {
        unready += 1;
      },
    );
  }, 500);
  await measureIncident(stage, async () => {
    await publish(bad.accountId, 1);
    await waitUntil(size.of(parkSeconds, 60), async () => (await countParked(stage)) === 1);
  });
  const parked = await countParked(stage);
  clearInterval(watching);
  return finish(stage, `bad-event ${code}`, 250, [
    { what: 'events not parked', value: 1 - parked, max: 0 },
    { what: 'responses of /readyz that are not 200', value: unready, max: 0 },
  ]);
}

/** Makes each new delivery of the lane fail. */
async function failDeliveries({ bench: { db } }: Stage, lane: number, code: string): Promise<void> {
  await sql`
    create function fail_delivery() returns trigger language plpgsql as $$
    begin
      raise exception 'a delivery that cannot be written' using errcode = tg_argv[0];
    end $$`.execute(db);
  await sql`
    create trigger fails before insert on deliveries for each row when (new.lane = ${sql.lit(lane)})
    execute function fail_delivery(${sql.lit(code)})`.execute(db);
}

async function countParked({ bench: { db } }: Stage): Promise<number> {
  const { rows } = await sql<{ count: number }>`select count(*)::int as count from parked_events`.execute(db);
  return rows[0]?.count ?? 0;
}
