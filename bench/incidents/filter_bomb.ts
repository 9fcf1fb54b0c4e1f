/** An account whose filters are as expensive as they may be, and that publishes many events. */

import { hash } from 'node:crypto';
import { sql } from 'kysely';
import { type Filter, filterPath } from '../../src/events/filter.ts';
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

/** One account below the number of subscriptions at which it would be a heavy account, and one with many. */
const shapes = [31, 1_000];

/** The evaluations are the attacker's, and everybody else's events wait no longer than otherwise. */
export const filterBomb: Incident = async (size) => {
  const rows: Row[] = [];
  for (const subscriptions of shapes)
    rows.push(await withStage(size, (stage) => measureBomb(stage, size, subscriptions)));
  return rows;
};

async function measureBomb(stage: Stage, size: Size, subscriptions: number): Promise<Row> {
  const { bench, othersUrl, publish } = stage;
  const [bomb] = (await makeCrowd(bench, {
    users: 1,
    subscriptionsOfEach: subscriptions,
    urlOf: () => othersUrl,
  })) as [CrowdMember];
  await setFilters(stage, bomb);
  await measureAlone(stage);
  await measureIncident(stage, async () => {
    await publish(bomb.accountId, size.of(300, 1_000));
    await waitUntil(size.of(8, 20), () => isFannedOut(stage));
  });
  return finish(stage, `filter-bomb ${subscriptions}`, 250);
}

/** Distinct filters, which no event meets: only their evaluation costs. */
async function setFilters({ bench: { db } }: Stage, { subscriptions }: CrowdMember): Promise<void> {
  const filters = subscriptions.map((_id, number): Filter => {
    const texts = (from: number) =>
      Array.from({ length: 100 }, (_none, index) => `refs/heads/no-${number}-${from + index}`);
    const others = Array.from({ length: 9 }, (_none, index) => ({
      not: { path: '/ref', in: texts(index * 100) },
    }));
    return { all: [...others, { path: '/ref', in: texts(900) }] };
  });
  const paths = filters.map(filterPath);
  await sql`
    update subscriptions set filter = given.filter::json, filter_path = given.path::jsonpath, filter_digest = given.digest
    from unnest(
      ${subscriptions}::uuid[], ${filters.map((filter) => JSON.stringify(filter))}::text[], ${paths}::text[],
      ${paths.map((path) => hash('sha256', path, 'buffer'))}::bytea[]
    ) as given (id, filter, path, digest)
    where subscriptions.id = given.id`.execute(db);
}
