/** Accounts with a thousand lanes that cannot start anything: waiting deliveries and retries of another account must still be read. */

import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { monotonicMs } from '../support/measure.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import { startRecovery } from './recover_missing.ts';
import type { Check, Incident } from './row.ts';
import {
  finish,
  isFannedOut,
  measureAlone,
  measureIncident,
  type Stage,
  waitUntil,
  withStage,
} from './stage.ts';

const lanesOfEach = 1_000;
/** Seconds until all of a burst must have arrived. */
const patience = 60;
/** On one processor with others' work, bursts alone differ by half. */
const timesAloneMax = 3;
/** Shorter bursts alone are compared with this. */
const burstMsMin = 250;

/**
 * An account whose host accepts one event of each subscription, refuses six and hangs, so that 6,000 due retries wait for its window. Another
 * account resends 1,000 deliveries.
 */
export const dueRetries: Incident = (size) =>
  withStage(size, async (stage) => {
    const accepted = lanesOfEach;
    const refused = 6 * lanesOfEach;
    const host = await startHost((count) =>
      count <= accepted ? 200 : count <= accepted + refused ? 500 : null,
    );
    try {
      const [member] = await crowdOf(stage, 1, host.url);
      await sql`update subscriptions set retry_schedule = ${Array(6).fill(15)}::int[] where account_id = ${member?.accountId}`.execute(
        stage.bench.db,
      );
      const burst = await prepareBurst(stage);
      await stage.publish(burst.member.accountId, 1_000);
      await burst.arrive(1_000);
      const resend = async () => {
        await startRecovery(stage, burst.member, ['succeeded']);
      };
      return await measureBursts(stage, 'due-retries', 1_000, burst, resend, async () => {
        await host.answerAll(member as CrowdMember, stage, [1, 6]);
        await sleep(15_000);
      });
    } finally {
      host.close();
    }
  });

/** Four accounts with ordered subscriptions that wait for a retry tomorrow, with events behind it. Another account publishes 3,000 events. */
export const orderedWaiting: Incident = (size) =>
  withStage(size, async (stage) => {
    const host = await startHost((count) => (count <= 4 * lanesOfEach ? 200 : 500));
    try {
      const members = await crowdOf(stage, 4, host.url);
      await sql`
        update subscriptions set owner = 'user', grant_id = null, client_id = null, ordered = true, retry_schedule = '{86400}'
        where account_id = any(${members.map(({ accountId }) => accountId)}::uuid[])`.execute(stage.bench.db);
      const burst = await prepareBurst(stage);
      const publish = () => stage.publish(burst.member.accountId, 3_000);
      return await measureBursts(stage, 'ordered-waiting', 3_000, burst, publish, async () => {
        // A host that accepted once may have many attempts at once.
        for (const member of members) await host.answerAll(member, stage, [1]);
        for (const member of members) await host.answerAll(member, stage, [1]);
        for (const { accountId } of members) await stage.publish(accountId, size.of(30, 100));
        await waitUntil(600, () => isFannedOut(stage));
      });
    } finally {
      host.close();
    }
  });

const crowdOf = (stage: Stage, users: number, url: string) =>
  makeCrowd(stage.bench, { users, subscriptionsOfEach: lanesOfEach, urlOf: () => url });

interface Burst {
  member: CrowdMember;
  /** Waits until so many more deliveries arrived. @returns the milliseconds; at most those of `patience` */
  arrive: (count: number) => Promise<number>;
}

async function prepareBurst(stage: Stage): Promise<Burst> {
  const { bench, others, othersUrl } = stage;
  const [member] = (await makeCrowd(bench, { users: 1, subscriptionsOfEach: 1, urlOf: () => othersUrl })) as [
    CrowdMember,
  ];
  let arrived = 0;
  const arrive = async (count: number) => {
    const from = monotonicMs();
    arrived += count;
    await waitUntil(patience, async () => (await others.ask('report')).count >= arrived, 10);
    return monotonicMs() - from;
  };
  return { member, arrive };
}

/** Measures bursts alone and during the incident, beside the single events of the stranger. */
async function measureBursts(
  stage: Stage,
  name: string,
  count: number,
  burst: Burst,
  send: () => Promise<void>,
  begin: () => Promise<void>,
) {
  const measure = async () => {
    const times: number[] = [];
    for (let round = 0; round < 3; round += 1) {
      const from = monotonicMs();
      await send();
      await burst.arrive(count);
      times.push(monotonicMs() - from);
      await sleep(1_000);
    }
    return times;
  };
  await measure();
  const alone = await measure();
  await measureAlone(stage);
  await begin();
  let during: number[] = [];
  await measureIncident(stage, async () => {
    during = await measure();
  });
  const check: Check = {
    what: 'longest burst, times alone',
    value: Math.max(...during) / Math.max(burstMsMin, ...alone),
    max: timesAloneMax,
  };
  const shown = (times: readonly number[]) => times.map((ms) => ms.toFixed(0)).join(', ');
  const note = `ms of bursts of ${count}: alone ${shown(alone)}; during ${shown(during)}`;
  return [await finish(stage, name, null, [check], note)];
}

interface Host {
  url: string;
  /** Publishes events of an account one after the other, and waits until the host answered each for each of its subscriptions. */
  answerAll: (member: CrowdMember, stage: Stage, events: readonly number[]) => Promise<void>;
  close: () => void;
}

/** @param statusOf the status of the nth request; null for none */
async function startHost(statusOf: (count: number) => number | null): Promise<Host> {
  let count = 0;
  let answered = 0;
  const server: Server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
    request.resume().on('end', () => {
      count += 1;
      const status = statusOf(count);
      if (status === null) return;
      answered += 1;
      response.writeHead(status).end();
    });
  });
  server.requestTimeout = 0;
  await once(server.listen(0, '0.0.0.0', 4_096), 'listening');
  return {
    url: `http://127.1.0.1:${(server.address() as AddressInfo).port}/hooks`,
    async answerAll({ accountId, lanes }, stage, events) {
      for (const each of events) {
        const until = answered + each * lanes.length;
        await stage.publish(accountId, each);
        await waitUntil(300, async () => answered >= until);
      }
    },
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}
