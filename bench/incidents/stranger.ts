/**
 * The stranger: an account that has nothing to do with an incident, with one healthy subscriber. It gets ten events a second, one
 * in each request, whether or not earlier ones have arrived. Its latency is the time from just before publishing to the receipt.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Bench,
  type BenchSubscriber,
  eventBody,
  percentile,
  publishEvents,
} from '../deliveries/support.ts';
import { monotonicMs } from '../support/measure.ts';
import type { PhaseLatency, PhaseName, Row } from './row.ts';

const perSecond = 10;
/** Milliseconds that the bench waits at its end for events that have not arrived. */
const patienceMs = 15_000;

interface Phase {
  name: PhaseName;
  from: number;
  to: number;
}

export interface StrangerOptions {
  bench: Bench;
  receiver: BenchSubscriber;
  token: string;
  accountId: string;
}

export class Stranger {
  readonly #options: StrangerOptions;
  /** Times of publishing; each is also the mark in the event. */
  readonly #marks: number[] = [];
  readonly #phases: Phase[] = [];
  #timer: NodeJS.Timeout | undefined;
  #publishing = new Set<Promise<void>>();
  refused = 0;

  constructor(options: StrangerOptions) {
    this.#options = options;
  }

  get accountId(): string {
    return this.#options.accountId;
  }

  async begin(): Promise<void> {
    await this.#options.receiver.ask('latency');
    this.resume();
  }

  resume(): void {
    this.#timer = setInterval(() => this.#publish(), 1_000 / perSecond);
  }

  async pause(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all(this.#publishing);
  }

  /** Measures the events that are published while the work runs. @param work or a number of seconds */
  async phase<T>(name: PhaseName, work: number | (() => Promise<T>)): Promise<T | undefined> {
    const from = monotonicMs();
    const result = typeof work === 'number' ? await sleep(work * 1_000, undefined) : await work();
    this.#phases.push({ name, from, to: monotonicMs() });
    return result;
  }

  /** Times of the events' arrivals so far, by mark. */
  async arrivals(): Promise<Map<number, number>> {
    const { receipts } = await this.#options.receiver.ask('report');
    const arrivals = new Map<number, number>();
    for (const [mark, at] of receipts ?? []) if (!arrivals.has(mark)) arrivals.set(mark, at);
    return arrivals;
  }

  /** Stops publishing, waits for the last events, and measures. */
  async end(): Promise<Pick<Row, 'phases'> & { missing: number; latencies: [mark: number, ms: number][] }> {
    await this.pause();
    const until = monotonicMs() + patienceMs;
    let arrivals = await this.arrivals();
    while (arrivals.size < this.#marks.length && monotonicMs() < until) {
      await sleep(100);
      arrivals = await this.arrivals();
    }
    const latencies = this.#marks.flatMap((mark): [number, number][] => {
      const at = arrivals.get(mark);
      return at === undefined ? [] : [[mark, at - mark]];
    });
    const phases: Row['phases'] = {};
    for (const { name, from, to } of this.#phases) {
      phases[name] = summarize(latencies.filter(([mark]) => mark >= from && mark < to));
    }
    return { phases, missing: this.#marks.length - latencies.length, latencies };
  }

  #publish(): void {
    const { bench, token, accountId } = this.#options;
    const mark = monotonicMs();
    this.#marks.push(mark);
    const event = { kind: 'push', account: accountId, body: eventBody(mark) };
    const publishing = publishEvents(bench, token, [event])
      .catch(() => {
        this.refused += 1;
      })
      .finally(() => this.#publishing.delete(publishing));
    this.#publishing.add(publishing);
  }
}

function summarize(latencies: readonly (readonly [number, number])[]): PhaseLatency {
  const values = latencies.map(([, ms]) => ms);
  return {
    count: values.length,
    p50: percentile(values, 0.5),
    p99: percentile(values, 0.99),
    max: percentile(values, 1),
  };
}
