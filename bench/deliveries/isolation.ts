/**
 * `npx node bench/deliveries.ts isolation [seconds] [subscriptions]`: what subscribers that hang and that refuse cost
 * those that do not. Of 100 subscriptions 80 are healthy and get 1,000 events a second in both halves of the run; in
 * the second half 10 hang for 15 s at each request and 10 refuse connections, each with 10,000 deliveries due.
 */

import { freePort } from '../../test/support/server.ts';
import { describeLatency, measureSteady } from './steady.ts';
import {
  createAudience,
  eventBody,
  makeBatches,
  openBench,
  publishBatches,
  publishEvents,
  startNuncio,
  startSubscriber,
} from './support.ts';

const dueEach = 10_000;
const healthyPerSecond = 1_000;
const warmSeconds = 8;
/** Seconds after which those who hang have shown it, and circuits are open. */
const settleSeconds = 3;

export async function measureIsolation([secondsText = '20', sizeText = '100']: string[]): Promise<void> {
  const seconds = Number(secondsText);
  const size = Number(sizeText);
  const sick = Math.floor(size / 10);
  const subscriber = await startSubscriber();
  const bench = await openBench();
  const server = await startNuncio(bench);
  try {
    const refusing = await freePort();
    const ports = (index: number) => {
      if (index < sick) return subscriber.ports.hang;
      return index < 2 * sick ? refusing : subscriber.ports.accept;
    };
    const { accounts, publisherToken } = await createAudience(
      bench,
      size,
      (index) => `http://127.0.0.1:${ports(index)}/hooks`,
    );
    const healthy = accounts.slice(2 * sick);
    let next = 0;
    const publish = (marks: number[]) =>
      publishEvents(
        bench,
        publisherToken,
        marks.map((mark) => ({
          kind: 'push',
          account: healthy[next++ % healthy.length],
          body: eventBody(mark),
        })),
      );
    await measureSteady(subscriber, healthyPerSecond, warmSeconds, publish);
    const without = await measureSteady(subscriber, healthyPerSecond, seconds, publish);
    console.log(`healthy ones alone: ${describeLatency(without)}`);
    await publishBatches(bench, publisherToken, makeBatches(accounts.slice(0, 2 * sick), 2 * sick * dueEach));
    const settling = await measureSteady(subscriber, healthyPerSecond, settleSeconds, publish);
    console.log(
      `the first ${settleSeconds} s after ${2 * sick * dueEach} came due: ${describeLatency(settling)}`,
    );
    const beside = await measureSteady(subscriber, healthyPerSecond, seconds, publish);
    console.log(`beside ${sick} that hang and ${sick} that refuse: ${describeLatency(beside)}`);
    console.log(
      `p99 ${(beside.p99 / without.p99).toFixed(2)} of what it is without them (at most 1.2 is wanted)`,
    );
  } finally {
    server.child.kill('SIGKILL');
    subscriber.stop();
    await bench.close();
  }
}
