/**
 * `npx node bench/deliveries.ts allocations [events] [subscriptions] [sites]`: the bytes that the server's two
 * JavaScript threads allocate for each delivery, and the processor time of each. Allocations do not depend on other
 * load of the machine. `sites` also prints which functions allocate; the sampling increases the times.
 */

import { threadMicros, threadsSince } from './processes.ts';
import {
  createAudience,
  makeBatches,
  type NuncioServer,
  openBench,
  publishBatches,
  startNuncio,
  startSubscriber,
  waitFor,
} from './support.ts';

export type ProbeRequest = 'count' | 'begin' | 'end';

export interface AllocationSite {
  /** The function, its position and its caller. */
  name: string;
  bytes: number;
}

export interface AllocationReport {
  thread: 'server' | 'engine';
  bytes: number;
  sites: AllocationSite[];
}

const warmEvents = 40_000;
const sitesMax = 45;

export async function measureAllocations([
  eventsText = '40000',
  sizeText = '100',
  detail = '',
]: string[]): Promise<void> {
  const events = Number(eventsText);
  const subscriber = await startSubscriber();
  const bench = await openBench();
  try {
    const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
    const probe = new URL('./probe.ts', import.meta.url);
    const server = await startNuncio(bench, ['--import', probe.href], { isAsked: true });
    const { accounts, publisherToken } = await createAudience(bench, Number(sizeText), () => url);
    const publish = async (count: number) => {
      await subscriber.ask('reset');
      await publishBatches(bench, publisherToken, makeBatches(accounts, count));
      await waitFor(subscriber, count);
      await new Promise((resolve) => setTimeout(resolve, 500));
    };
    await publish(Math.max(warmEvents, Number(sizeText)));
    const pid = server.child.pid as number;
    const before = await ask(server, detail === 'sites' ? 'begin' : 'count');
    const threads = threadMicros(pid);
    await publish(events);
    const used = threadsSince(threads, pid);
    const after = await ask(server, detail === 'sites' ? 'end' : 'count');
    for (const thread of ['server', 'engine'] as const) {
      const report = after.get(thread) as AllocationReport;
      const bytes = report.bytes - (before.get(thread)?.bytes ?? 0);
      const micros = (used.get(thread) ?? 0) / events;
      console.log(
        `${thread}: ${Math.round(bytes / events)} bytes, ${micros.toFixed(1)} µs for each delivery`,
      );
      for (const { name, bytes: size } of report.sites.slice(0, sitesMax))
        console.log(`  ${Math.round(size / events)} ${name}`);
    }
    console.log(`helpers: ${((used.get('helpers') ?? 0) / events).toFixed(1)} µs for each delivery`);
    await server.stop();
  } finally {
    subscriber.stop();
    await bench.close();
  }
}

/** Returns the reports of both threads. */
async function ask(server: NuncioServer, request: ProbeRequest): Promise<Map<string, AllocationReport>> {
  const reports = new Map<string, AllocationReport>();
  await new Promise<void>((resolve) => {
    const onMessage = (report: AllocationReport) => {
      reports.set(report.thread, report);
      if (reports.size < 2) return;
      server.child.off('message', onMessage);
      resolve();
    };
    server.child.on('message', onMessage);
    server.child.send(request);
  });
  return reports;
}
