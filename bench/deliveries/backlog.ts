/**
 * `npx node bench/deliveries.ts backlog [deliveries] [subscriptions]`: the cost of a backlog. The server starts on a
 * database with 100,000 due deliveries, then on one with 1,000,000 more. Each time, the send rate and the server's
 * resident memory are compared with those of an idle server.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { record } from '../support/record.ts';
import { residentBytes } from './processes.ts';
import {
  type Bench,
  type BenchSubscriber,
  createAudience,
  eventBody,
  openBench,
  startNuncio,
  startSubscriber,
} from './support.ts';

const smallCount = 100_000;
const chunk = 50_000;
const idleSeconds = 3;
const sampleMs = 100;
const mebibyte = 1_048_576;

export async function measureBacklog([countText = '1000000', sizeText = '100']: string[]): Promise<void> {
  const subscriber = await startSubscriber();
  const bench = await openBench();
  try {
    const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
    const server = await startNuncio(bench);
    const { accounts } = await createAudience(bench, Number(sizeText), () => url);
    await sleep(idleSeconds * 1_000);
    const idleBytes = residentBytes(server.child.pid as number);
    await server.stop();
    console.log(`idle: ${Math.round(idleBytes / mebibyte)} MiB resident`);
    record({ of: 'idle', residentMiB: idleBytes / mebibyte });
    const small = await drain(bench, subscriber, accounts, smallCount, idleBytes);
    const large = await drain(bench, subscriber, accounts, Number(countText), idleBytes);
    console.log(
      `rate ${(large.perSecond / small.perSecond).toFixed(2)} of that with empty tables (at least 0.9 is wanted); ` +
        `memory ${Math.round((large.maxBytes - idleBytes) / mebibyte)} MiB above idle (at most 100 is wanted)`,
    );
  } finally {
    subscriber.stop();
    await bench.close();
  }
}

interface Drain {
  perSecond: number;
  maxBytes: number;
}

/** Starts a new server that sends what is due. Measures from the first receipt to the last. */
async function drain(
  bench: Bench,
  subscriber: BenchSubscriber,
  accounts: readonly string[],
  count: number,
  idleBytes: number,
): Promise<Drain> {
  for (let left = count; left > 0; left -= chunk) await makeDue(bench, accounts, Math.min(left, chunk));
  await sql`checkpoint`.execute(bench.db);
  await subscriber.ask('reset');
  const server = await startNuncio(bench);
  const samples: number[] = [];
  let report = await subscriber.ask('report');
  while (report.count < count) {
    samples.push(residentBytes(server.child.pid as number));
    await sleep(sampleMs);
    report = await subscriber.ask('report');
  }
  const perSecond = (count * 1_000) / (report.lastAt - report.firstAt);
  const maxBytes = Math.max(...samples);
  await sleep(idleSeconds * 1_000);
  const afterBytes = residentBytes(server.child.pid as number);
  await server.stop();
  record({ of: 'backlog', due: count, perSecond, residentMiB: maxBytes / mebibyte });
  const mib = (bytes: number) => `${Math.round(bytes / mebibyte)} MiB`;
  console.log(
    `${count} due: ${Math.round(perSecond)}/s, resident at most ${mib(maxBytes)} (${mib(maxBytes - idleBytes)} above idle), ` +
      `${mib(afterBytes)} afterwards`,
  );
  return { perSecond, maxBytes };
}

/** Writes events and their deliveries as publishing and fan-out do, in bulk, while no server runs. */
async function makeDue(bench: Bench, accounts: readonly string[], count: number): Promise<void> {
  await sql`
    with added as (
      insert into events (id, account_id, kind, body)
      select gen_random_uuid()::text, (${accounts}::uuid[])[1 + number % ${accounts.length}::int], 'push',
        replace(${JSON.stringify(eventBody('main'))}, 'heads/main', 'heads/' || number)
      from generate_series(1, ${count}::int) as number
      returning day, position, account_id
    ),
    numbered as materialized (
      select added.day, added.position, s.lane,
        row_number() over (partition by s.lane order by added.position) - 1 as number
      from added join subscriptions s on s.account_id = added.account_id
    ),
    written as (
      insert into deliveries (day, lane, sequence, event)
      select day, lane, lanes.next_sequence + number, position from numbered join lanes on lanes.id = numbered.lane
    ),
    due as (
      update lane_progress set due_at = now() from (select distinct lane from numbered) as given
      where lane_progress.lane = given.lane
    )
    update lanes set next_sequence = next_sequence + given.count
    from (select lane, count(*) as count from numbered group by lane) as given
    where lanes.id = given.lane`.execute(bench.db);
}
