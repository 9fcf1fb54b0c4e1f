/**
 * The cost of deliveries: `npx node bench/deliveries.ts [throughput|statements|profile] [events] [subscriptions…]`,
 * and `allocations`, `latency`, `single`, `isolation`, `strangers`, `backlog`, `burst`, `sql`, `disk`, `filters` and `event-cache`, each
 * described in its file in bench/deliveries.
 *
 * One run measures on the same cores: the bare loop (an `undici` pool that signs and POSTs), and Nuncio from `POST
 * /events` in batches of 1,000 to the last receipt, everything durable, with 1, 100 and 10,000 subscriptions. With
 * more than one subscription, each event still has exactly one delivery.
 */

import { execFileSync, spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { measureAllocations } from './deliveries/allocations.ts';
import { measureBacklog } from './deliveries/backlog.ts';
import { measureBurst } from './deliveries/burst.ts';
import { measureDatabase } from './deliveries/database.ts';
import { measureDisk } from './deliveries/disk.ts';
import { measureEventCache } from './deliveries/event_cache.ts';
import { measureFilters } from './deliveries/filters.ts';
import { measureIsolation } from './deliveries/isolation.ts';
import { measureLatency } from './deliveries/latency.ts';
import { cpuMicros, residentBytes, threadMicros, threadsSince } from './deliveries/processes.ts';
import { measureSingle } from './deliveries/single.ts';
import { measureSql } from './deliveries/sql.ts';
import { readStatements, resetStatements, type StatementCost } from './deliveries/statements.ts';
import { measureStrangers } from './deliveries/strangers.ts';
import {
  createAudience,
  databaseWork,
  eventBody,
  makeBatches,
  openBench,
  publishBatches,
  startNuncio,
  startSubscriber,
  waitFor,
} from './deliveries/support.ts';
import { record } from './support/record.ts';

const [mode = 'throughput', eventsText = '60000', ...sizeTexts] = process.argv.slice(2);
const other = {
  allocations: measureAllocations,
  latency: measureLatency,
  isolation: measureIsolation,
  backlog: measureBacklog,
  database: measureDatabase,
  disk: measureDisk,
  burst: measureBurst,
  'event-cache': measureEventCache,
  filters: measureFilters,
  single: measureSingle,
  sql: measureSql,
  strangers: measureStrangers,
}[mode];
/**
 * These programs publish and measure in this process. Its own garbage collections would count as latency, so it gets a large
 * young generation and one collecting thread. The measured server has its own process and none of these flags.
 */
const measuresLatency = ['latency', 'isolation', 'strangers', 'burst'].includes(mode);
const quietFlags = ['--max-semi-space-size=64', '--min-semi-space-size=64', '--v8-pool-size=1'];
if (measuresLatency && !process.execArgv.includes(quietFlags[0] as string)) {
  const { status } = spawnSync(process.execPath, [...quietFlags, ...process.argv.slice(1)], {
    stdio: 'inherit',
  });
  process.exit(status ?? 1);
}
if (other !== undefined) {
  await other(process.argv.slice(3));
  process.exit();
}
const events = Number(eventsText);
const sizes = sizeTexts.length > 0 ? sizeTexts.map(Number) : [1, 100, 10_000];
const flags = process.env.BENCH_NODE_FLAGS
  ? process.env.BENCH_NODE_FLAGS.split(' ')
  : mode === 'profile'
    ? ['--cpu-prof', '--cpu-prof-dir=/tmp/nuncio-profile']
    : [];

const subscriber = await startSubscriber();
const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;

interface BareResult {
  perSecond: number;
  cpuMicros: number;
}

function bareLoop(count: number): BareResult {
  const script = fileURLToPath(new URL('deliveries/bare.ts', import.meta.url));
  const env = { ...process.env, BENCH_BODY: JSON.stringify(eventBody('main')) };
  return JSON.parse(execFileSync(process.execPath, [script, url, String(count)], { env, encoding: 'utf8' }));
}

function printStatements(statements: StatementCost[], events: number): void {
  const calls = statements.reduce((sum, statement) => sum + statement.calls, 0);
  console.log(`${(calls / events).toFixed(4)} statements for each delivery; the dearest, for each delivery:`);
  for (const { text, ...cost } of statements.slice(0, 12)) {
    const each = (value: number) => (value / events).toFixed(3);
    console.log(
      `  ${((cost.milliseconds * 1_000) / events).toFixed(2)} µs in ${cost.calls} calls, ${each(cost.rows)} rows, ` +
        `${each(cost.pages)} pages (${each(cost.dirtied)} dirtied), WAL ${Math.round(cost.walBytes / events)} bytes: ` +
        text.slice(0, 110),
    );
  }
}

const bench = await openBench({ withStatements: mode === 'statements' });
try {
  bareLoop(events);
  const bare: BareResult[] = [bareLoop(events * 2)];
  console.log(
    `bare loop: ${Math.round(bare[0]?.perSecond ?? 0)}/s, ${bare[0]?.cpuMicros.toFixed(1)} µs of its process`,
  );
  for (const size of sizes) {
    const server = await startNuncio(bench, flags);
    const audience = await createAudience(bench, size, () => url);
    const pid = server.child.pid as number;
    // The first round excludes one-time work (lanes, connections, compiled code) from the figures.
    await subscriber.ask('reset');
    const warm = Math.max(60_000, size);
    await publishBatches(bench, audience.publisherToken, makeBatches(audience.accounts, warm));
    await waitFor(subscriber, warm);
    await new Promise((resolve) => setTimeout(resolve, 500));
    const batches = makeBatches(audience.accounts, events);
    if (mode === 'statements') await resetStatements(bench.db);
    const before = await databaseWork(bench.db);
    const threads = threadMicros(pid);
    const cpuBefore = { node: cpuMicros([pid]), postgres: cpuMicros(bench.postgresPids()) };
    const reset = await subscriber.ask('reset');
    const startedAt = performance.timeOrigin + performance.now();
    await publishBatches(bench, audience.publisherToken, batches);
    const publishedAt = performance.timeOrigin + performance.now();
    const report = await waitFor(subscriber, events);
    const perSecond = events / ((report.lastAt - startedAt) / 1_000);
    await new Promise((resolve) => setTimeout(resolve, 200));
    const after = await databaseWork(bench.db);
    const micros = (value: number) => `${(value / events).toFixed(1)} µs`;
    const cpuNode = cpuMicros([pid]) - cpuBefore.node;
    const parts = [...threadsSince(threads, pid)].map(
      ([name, used]) => `${name} ${(used / events).toFixed(1)}`,
    );
    bare.push(bareLoop(events));
    // The machine's speed varies during the run, so the ratio uses the bare loops before and after.
    const reference = ((bare.at(-1)?.perSecond ?? 0) + (bare.at(-2)?.perSecond ?? 0)) / 2;
    const cpuPostgres = cpuMicros(bench.postgresPids()) - cpuBefore.postgres;
    record({
      of: 'deliveries',
      subscriptions: size,
      perSecond,
      barePerSecond: reference,
      nodeMicros: cpuNode / events,
      postgresMicros: cpuPostgres / events,
      walBytes: (after.walBytes - before.walBytes) / events,
      residentMiB: residentBytes(pid) / 1_048_576,
    });
    console.log(
      `${size} subscriptions: ${Math.round(perSecond)}/s = ${(perSecond / reference).toFixed(2)} of bare ` +
        `(${Math.round(reference)}/s); published in ${Math.round(publishedAt - startedAt)} of ${Math.round(report.lastAt - startedAt)} ms; ` +
        `CPU of Node ${micros(cpuNode)} (${parts.join(', ')}), of PostgreSQL ${micros(cpuPostgres)}, ` +
        `of the subscriber ${micros(report.cpu.user + report.cpu.system - reset.cpu.user - reset.cpu.system)}; ` +
        `WAL ${Math.round((after.walBytes - before.walBytes) / events)} bytes, ` +
        `${((after.commits - before.commits) / events).toFixed(4)} transactions; ` +
        `${report.count} received; resident ${Math.round(residentBytes(pid) / 1_048_576)} MiB`,
    );
    if (mode === 'statements') printStatements(await readStatements(bench.db), events);
    await server.stop();
  }
} finally {
  subscriber.stop();
  await bench.close();
}
