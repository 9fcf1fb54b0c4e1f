/** A steady load: a fixed number of events a second, each with its publishing time. */

import { setTimeout as sleep } from 'node:timers/promises';
import { monotonicMs } from '../support/measure.ts';
import { type BenchSubscriber, percentile, waitFor } from './support.ts';

/** Milliseconds between two requests. At 1,000 events a second, each request has ten. */
const stepMs = 10;

export interface Latency {
  count: number;
  p50: number;
  p99: number;
  /** The median of each second's p99, so that a single pause does not decide it. */
  p99OfSeconds: number;
  max: number;
}

/**
 * Publishes for some seconds and measures the time until the receipt.
 * @param publish publishes events with the given marks, and resolves when they are durable. The time counts from an
 * event's mark, which is taken just before publishing, or from the time that `publish` stores in `starts` for that
 * mark.
 */
export async function measureSteady(
  subscriber: BenchSubscriber,
  perSecond: number,
  seconds: number,
  publish: (marks: number[], starts: Map<number, number>) => Promise<void>,
): Promise<Latency> {
  const total = perSecond * seconds;
  await subscriber.ask('latency');
  const starts = new Map<number, number>();
  const inFlight: Promise<void>[] = [];
  const startedAt = monotonicMs();
  for (let sent = 0; sent < total; ) {
    const due = Math.min(total, Math.floor(((monotonicMs() - startedAt) / 1_000) * perSecond));
    if (due > sent) {
      const marks = Array.from({ length: due - sent }, () => monotonicMs());
      inFlight.push(publish(marks, starts));
      sent = due;
    }
    await sleep(stepMs);
  }
  await Promise.all(inFlight);
  const { receipts } = await waitFor(subscriber, total);
  const found = (receipts ?? []).map(([mark, at]) => at - (starts.get(mark) ?? mark));
  return {
    count: found.length,
    p50: percentile(found, 0.5),
    p99: percentile(found, 0.99),
    p99OfSeconds: percentile(
      Array.from({ length: Math.ceil(found.length / perSecond) }, (_, second) =>
        percentile(found.slice(second * perSecond, (second + 1) * perSecond), 0.99),
      ),
      0.5,
    ),
    max: percentile(found, 1),
  };
}

export function describeLatency({ count, p50, p99, p99OfSeconds, max }: Latency): string {
  return (
    `p50 ${p50.toFixed(1)} ms, p99 ${p99.toFixed(1)} ms (of a second, in the median, ${p99OfSeconds.toFixed(1)} ms), ` +
    `highest ${max.toFixed(0)} ms of ${count}`
  );
}
