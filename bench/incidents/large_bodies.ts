/** An account with a filter that publishes many events at once whose bodies PostgreSQL parses for it. */

import { hash } from 'node:crypto';
import { sql } from 'kysely';
import { filterPath } from '../../src/events/filter.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident, Row, Size } from './row.ts';
import {
  finish,
  isFannedOut,
  measureAlone,
  measureIncident,
  type Stage,
  waitUntil,
  withStage,
} from './stage.ts';

interface Shape {
  bodyBytes: number;
  events: number;
}

/** A request to publish has at most so many bytes. */
const requestBytes = 1_048_576;

/** The largest bodies, and bodies just below those with which an account would be a heavy account. */
const shapes = (size: Size): Shape[] => [
  { bodyBytes: 262_144, events: size.of(300, 600) },
  { bodyBytes: 15_000, events: size.of(4_000, 8_000) },
];

/** The account's events wait for each other, and everybody else's wait no longer than otherwise. */
export const largeBodies: Incident = async (size) => {
  const rows: Row[] = [];
  for (const shape of shapes(size))
    rows.push(await withStage(size, (stage) => measureBodies(stage, size, shape)));
  return rows;
};

async function measureBodies(stage: Stage, size: Size, shape: Shape): Promise<Row> {
  const [member] = (await makeCrowd(stage.bench, {
    users: 1,
    subscriptionsOfEach: 1,
    urlOf: () => stage.othersUrl,
  })) as [CrowdMember];
  await setFilter(stage, member);
  await measureAlone(stage);
  let seconds = 0;
  await measureIncident(stage, async () => {
    await publishAtOnce(stage, member, shape);
    const begunAt = performance.now();
    await waitUntil(size.of(60, 120), () => isFannedOut(stage));
    seconds = (performance.now() - begunAt) / 1_000;
  });
  const name = `large-bodies ${shape.events} of ${shape.bodyBytes}`;
  return finish(stage, name, 250, [], `fanned out in ${seconds.toFixed(1)} s`);
}

/** A filter that no event meets: only its evaluation costs. */
async function setFilter({ bench: { db } }: Stage, { lanes }: CrowdMember): Promise<void> {
  const filter = { all: [{ path: '/ref', eq: 'none' }] };
  const path = filterPath(filter);
  await sql`
    update subscriptions set filter = ${JSON.stringify(filter)}::json, filter_path = ${path}::jsonpath,
      filter_digest = ${hash('sha256', path, 'buffer')}
    where lane = any(${lanes}::bigint[])`.execute(db);
}

/** Many requests commit together. Lists of numbers take longest to parse, and no kind of the example has them. */
async function publishAtOnce(
  { bench: { db } }: Stage,
  { accountId }: CrowdMember,
  { bodyBytes, events }: Shape,
): Promise<void> {
  await sql`
    with event as (
      insert into events (id, account_id, kind, body)
      select gen_random_uuid()::text, ${accountId}::uuid, 'push', '{"ref":"","n":[1' || repeat(',1', ${bodyBytes / 2 - 10}::int) || ']}'
      from generate_series(1, ${events}::int)
      returning day, position
    )
    insert into outbox (day, turn, positions)
    select day, ${accountId}::uuid, array_agg(position order by position)
    from (select day, position, row_number() over (order by position) - 1 as number from event) as each
    group by day, number / ${Math.floor(requestBytes / bodyBytes)}::int order by min(position)`.execute(db);
}
