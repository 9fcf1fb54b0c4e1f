/** Sessions of others in the database: a locked row, and an old snapshot. */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { eventBody, publishEvents } from '../deliveries/support.ts';
import { monotonicMs } from '../support/measure.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident } from './row.ts';
import {
  finish,
  measureAlone,
  measureIncident,
  openForeignSession,
  type Stage,
  waitUntil,
  withStage,
} from './stage.ts';

const mebibyte = 1_048_576;

/** A foreign session locks the row in `lanes` of another account's subscription, which gets an event a second. */
export const lockedLane: Incident = (size) =>
  withStage(size, async (stage) => {
    const { bench, othersUrl, publish } = stage;
    const [other] = (await makeCrowd(bench, {
      users: 1,
      subscriptionsOfEach: 1,
      urlOf: () => othersUrl,
    })) as [CrowdMember];
    const session = await openForeignSession(stage);
    const publishing = setInterval(() => void publish(other.accountId, 1).catch(() => {}), 1_000);
    await measureAlone(stage);
    await measureIncident(stage, async () => {
      await session.query('begin');
      await session.query('select from lanes where id = $1 for update', other.lanes);
      await sleep(size.of(12_000, 30_000));
      await session.query('commit');
    });
    clearInterval(publishing);
    await session.end();
    return [await finish(stage, 'locked-lane', 250)];
  });

/**
 * A foreign session is idle with a snapshot while a thousand events a second are published. The stranger's latency alone is that
 * beside the same load without the snapshot.
 */
export const foreignSnapshot: Incident = (size) =>
  withStage(size, async (stage) => {
    const crowd = await makeCrowd(stage.bench, {
      users: 100,
      subscriptionsOfEach: 1,
      urlOf: () => stage.othersUrl,
    });
    const load = startLoad(stage, crowd);
    const session = await openForeignSession(stage);
    // As long as with the snapshot, up to a minute: of a few events, the 99th percentile is the maximum.
    await measureAlone(stage, size.of(30, 60));
    let largest = 0;
    const minutes = size.of(0.5, 30);
    await stage.stranger.phase('during', async () => {
      await session.query('begin isolation level repeatable read');
      await session.query('select from outbox limit 1');
      const until = monotonicMs() + minutes * 60_000;
      while (monotonicMs() < until) {
        largest = Math.max(largest, await outboxBytes(stage));
        await sleep(1_000);
      }
      await session.query('commit');
    });
    await load.stop();
    await session.end();
    await stage.stranger.phase('after', async () => {
      await sleep(size.of(5_000, 15_000));
      await waitUntil(120, async () => (await outboxBytes(stage)) < 16 * mebibyte, 1_000);
    });
    const after = await outboxBytes(stage);
    const row = await finish(
      stage,
      'foreign-snapshot',
      null,
      [{ what: 'outbox afterwards, MiB', value: after / mebibyte, max: 16 }],
      `${minutes} minutes, ${load.published()} events; outbox up to ${Math.round(largest / mebibyte)} MiB`,
    );
    const { alone, during } = row.phases;
    row.checks.push({
      what: 'p99 during, ms',
      value: during?.p99 ?? Number.NaN,
      max: 2 * (alone?.p99 ?? Number.NaN),
    });
    return [row];
  });

async function outboxBytes({ bench }: Stage): Promise<number> {
  const { rows } = await sql<{ bytes: string }>`select pg_total_relation_size('outbox') as bytes`.execute(
    bench.db,
  );
  return Number(rows[0]?.bytes);
}

/** Publishes events of ten accounts in each of a hundred requests a second. One request follows the other. */
function startLoad({ bench, token }: Stage, crowd: readonly CrowdMember[]) {
  let published = 0;
  let isStopped = false;
  const run = async () => {
    const startedAt = monotonicMs();
    for (let turn = 0; !isStopped; turn += 1) {
      // Without a pause it catches up, so that the rate holds.
      const waitMs = startedAt + turn * 10 - monotonicMs();
      if (waitMs > 0) await sleep(waitMs);
      const events = Array.from({ length: 10 }, (_, index) => {
        const { accountId } = crowd[(turn * 10 + index) % crowd.length] as CrowdMember;
        return { kind: 'push', account: accountId, body: eventBody(turn) };
      });
      await publishEvents(bench, token, events);
      published += events.length;
    }
  };
  const running = run();
  return {
    published: () => published,
    stop: async () => {
      isStopped = true;
      await running;
    },
  };
}
