/**
 * `npx node bench/deliveries.ts isolation [seconds] [pairs] [due]`: the effect of hanging and refusing subscribers on
 * healthy ones. 80 healthy subscriptions receive 1,000 events a second throughout, in turns alone and beside 10 that
 * hang for 15 s at each request and 10 that refuse connections, each with a number of due deliveries. After each turn
 * these subscriptions end, and the next turn creates new ones.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { freePort } from '../../test/support/servers/server.ts';
import { describeLatency, measureSteady } from './steady.ts';
import {
  type Bench,
  createAudience,
  eventBody,
  makeBatches,
  openBench,
  percentile,
  publishBatches,
  publishEvents,
  startNuncio,
  startSubscriber,
} from './support.ts';

const healthyCount = 80;
const sickCount = 20;
const healthyPerSecond = 1_000;
const warmSeconds = 8;
/** Time until hanging subscribers are detected and circuits are open; the same time after their end. */
const settleSeconds = 3;

export async function measureIsolation([
  secondsText = '8',
  pairsText = '3',
  dueText = '10000',
]: string[]): Promise<void> {
  const [seconds, pairs, due] = [secondsText, pairsText, dueText].map(Number) as [number, number, number];
  const subscriber = await startSubscriber();
  const bench = await openBench();
  const server = await startNuncio(bench);
  try {
    const refusing = await freePort();
    const at = (port: number) => `http://127.0.0.1:${port}/hooks`;
    const { accounts, publisherToken } = await createAudience(bench, healthyCount, () =>
      at(subscriber.ports.accept),
    );
    let next = 0;
    const publish = (marks: number[]) =>
      publishEvents(
        bench,
        publisherToken,
        marks.map((mark) => ({
          kind: 'push',
          account: accounts[next++ % accounts.length],
          body: eventBody(mark),
        })),
      );
    const measure = (some: number) => measureSteady(subscriber, healthyPerSecond, some, publish);
    await measure(warmSeconds);
    const ratios: { whole: number; ofSeconds: number }[] = [];
    for (let pair = 0; pair < pairs; pair += 1) {
      const alone = await measure(seconds);
      console.log(`healthy ones alone: ${describeLatency(alone)}`);
      const sick = await createAudience(bench, sickCount, (index) =>
        at(index % 2 === 0 ? subscriber.ports.hang : refusing),
      );
      await publishBatches(bench, publisherToken, makeBatches(sick.accounts, sickCount * due));
      console.log(`just after ${sickCount * due} came due: ${describeLatency(await measure(settleSeconds))}`);
      const beside = await measure(seconds);
      console.log(`beside those that hang and refuse: ${describeLatency(beside)}`);
      ratios.push({
        whole: beside.p99 / alone.p99,
        ofSeconds: beside.p99OfSeconds / alone.p99OfSeconds,
      });
      await endSubscriptions(bench, sick.accounts);
      await measure(settleSeconds);
    }
    const median = (key: 'whole' | 'ofSeconds') =>
      percentile(
        ratios.map((ratio) => ratio[key]),
        0.5,
      ).toFixed(2);
    console.log(
      `p99 beside them is ${median('ofSeconds')} of that alone by the seconds, ${median('whole')} by the whole turns ` +
        `(medians of ${pairs} pairs; at most 1.2 is wanted)`,
    );
  } finally {
    server.child.kill('SIGKILL');
    subscriber.stop();
    await bench.close();
  }
}

/**
 * Ends subscriptions, and waits until their last requests have finished and their lanes are released. The next turn
 * starts undisturbed.
 */
async function endSubscriptions(bench: Bench, accounts: string[]): Promise<void> {
  await sql`
    update subscriptions set state = 'ended', ended_at = now()
    where account_id = any(${accounts}::uuid[])`.execute(bench.db);
  for (;;) {
    const { rows } = await sql`
      select from subscriptions s join lane_progress p on p.lane = s.lane
      where s.account_id = any(${accounts}::uuid[]) and p.owner is not null`.execute(bench.db);
    if (rows.length === 0) return;
    await sleep(100);
  }
}
