/** Many lanes or many events of other accounts at once. */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { eventBody } from '../deliveries/support.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident } from './row.ts';
import {
  finish,
  isFannedOut,
  measureAlone,
  measureIncident,
  openForeignSession,
  waitUntil,
  withStage,
} from './stage.ts';

/** 22,000 lanes with a limit of one attempt a second, each with a backlog of ten: more than a node leases. */
export const rateLimitedLanes: Incident = (size) =>
  withStage(size, async (stage) => {
    const crowd = await makeCrowd(stage.bench, {
      users: 22,
      subscriptionsOfEach: 1_000,
      urlOf: () => stage.othersUrl,
      rateLimit: 1,
    });
    await measureAlone(stage);
    await measureIncident(
      stage,
      async () => {
        for (const { accountId } of crowd) await stage.publish(accountId, 10);
      },
      size.of(20, 60),
    );
    return [await finish(stage, 'rate-limited-lanes', 250)];
  });

/** One event becomes 150,000 deliveries. */
export const oneEvent: Incident = (size) =>
  withStage(size, async (stage) => {
    const [member] = (await makeCrowd(stage.bench, {
      users: 1,
      subscriptionsOfEach: 150_000,
      urlOf: () => stage.othersUrl,
    })) as [CrowdMember];
    await measureAlone(stage);
    await measureIncident(stage, () => stage.publish(member.accountId, 1), size.of(20, 90));
    const { count } = await stage.others.ask('report');
    return [await finish(stage, 'one-event-150000', 500, [], `${count} deliveries arrived`)];
  });

/** 20,000 events by `nuncio.publish` in one transaction. */
export const manyBySql: Incident = (size) =>
  withStage(size, async (stage) => {
    const [member] = (await makeCrowd(stage.bench, {
      users: 1,
      subscriptionsOfEach: 1,
      urlOf: () => stage.othersUrl,
    })) as [CrowdMember];
    const session = await openForeignSession(stage);
    await measureAlone(stage);
    await measureIncident(stage, async () => {
      await session.query(`select count(publish('push', $1, $2::jsonb)) from generate_series(1, 20000)`, [
        member.accountId,
        JSON.stringify(eventBody('sql')),
      ]);
      await waitUntil(30, async () => {
        const { rows } = await sql`select from inbox limit 1`.execute(stage.bench.db);
        return rows.length === 0 && (await isFannedOut(stage));
      });
    });
    await session.end();
    const { count } = await stage.others.ask('report');
    return [await finish(stage, 'sql-20000', 250, [], `${count} deliveries arrived`)];
  });

/**
 * Twenty accounts with 2,400 subscriptions get an event a second each. The stranger has 41 subscriptions, of which one gets the kind, so its
 * events take turns with theirs.
 */
export const unequalFanOuts: Incident = (size) =>
  withStage(size, async (stage) => {
    const { bench, stranger, othersUrl } = stage;
    const urlOf = () => othersUrl;
    const crowd = await makeCrowd(bench, { users: 20, subscriptionsOfEach: 2_400, urlOf });
    const [other] = (await makeCrowd(bench, {
      users: 1,
      subscriptionsOfEach: 40,
      urlOf,
      kinds: ['issue.created'],
    })) as [CrowdMember];
    await sql`
      update subscriptions s set account_id = g.account_id, grant_id = g.id, client_id = g.client_id
      from grants g where g.account_id = ${stranger.accountId} and s.account_id = ${other.accountId}`.execute(
      bench.db,
    );
    await measureAlone(stage);
    await measureIncident(stage, async () => {
      for (let second = 0; second < 12; second += 1) {
        await Promise.all([sleep(1_000), ...crowd.map(({ accountId }) => stage.publish(accountId, 1))]);
      }
    });
    const { count } = await stage.others.ask('report');
    return [await finish(stage, 'unequal-fan-outs', 5_000, [], `${count} deliveries arrived`)];
  });
