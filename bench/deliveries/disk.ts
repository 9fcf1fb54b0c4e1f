/**
 * `npx node bench/deliveries.ts disk [events] [subscribers]`: the disk that events and deliveries take, with their indexes, for
 * bodies of about 1 and 8 KiB. Each event has a delivery for each of some subscriptions, all accepted at the first attempt with a
 * response of 2 bytes.
 */

import { sql } from 'kysely';
import type { Database } from '../../src/database/database.ts';
import { mintAccessToken } from '../../test/support/clients/oauth.ts';
import { record } from '../support/record.ts';
import {
  addSubscription,
  type Bench,
  type BenchSubscriber,
  createSubscribers,
  databaseWork,
  eventBody,
  openBench,
  publishBatches,
  startNuncio,
  startSubscriber,
  waitFor,
} from './support.ts';

const bodyKiBs = [1, 8];
const batchSize = 200;

export async function measureDisk([eventsText = '20000', sizeText = '4']: string[]): Promise<void> {
  const events = Number(eventsText);
  const subscriptions = Number(sizeText);
  const subscriber = await startSubscriber();
  try {
    for (const bodyKiB of bodyKiBs) {
      const bench = await openBench();
      try {
        await measure(bench, subscriber, { events, subscriptions, bodyKiB });
      } finally {
        await bench.close();
      }
    }
  } finally {
    subscriber.stop();
  }
}

async function measure(
  bench: Bench,
  subscriber: BenchSubscriber,
  { events, subscriptions, bodyKiB }: { events: number; subscriptions: number; bodyKiB: number },
): Promise<void> {
  const server = await startNuncio(bench);
  try {
    const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
    const { accounts, client } = await createSubscribers(bench, 1, () => url);
    const account = accounts[0] as string;
    const { rows } = await sql<{ id: string }>`select id from grants where account_id = ${account}`.execute(
      bench.db,
    );
    const grant = { accountId: account, clientId: client.id, grantId: rows[0]?.id as string };
    for (let more = 1; more < subscriptions; more++) await addSubscription(bench, grant, url);
    const { accessToken } = await mintAccessToken(bench, { client, scopes: ['write:events'] });
    const before = { sizes: await sizesOf(bench.db), work: await databaseWork(bench.db) };
    await subscriber.ask('reset');
    await publishBatches(bench, accessToken, batches(account, events, bodyKiB));
    await waitFor(subscriber, events * subscriptions);
    await recorded(bench.db, events * subscriptions);
    const after = { sizes: await sizesOf(bench.db), work: await databaseWork(bench.db) };
    const grown = (part: keyof Sizes) => after.sizes[part] - before.sizes[part];
    const result = {
      bodyKiB,
      eventBytes: grown('events') / events,
      deliveryBytes: (grown('deliveries') + grown('attempts')) / (events * subscriptions),
      walBytes: (after.work.walBytes - before.work.walBytes) / (events * subscriptions),
    };
    record({ of: 'disk', ...result });
    console.log(
      `bodies of ${bodyKiB} KiB: ${Math.round(result.eventBytes)} bytes for each event, ${Math.round(result.deliveryBytes)} for each ` +
        `delivery; WAL ${Math.round(result.walBytes)} bytes for each delivery with ${subscriptions} deliveries of an event`,
    );
  } finally {
    await server.stop();
  }
}

/** Random text does not compress, as most JSON does little: the figures are an upper bound. */
function batches(account: string, events: number, bodyKiB: number): string[] {
  const made: string[] = [];
  for (let from = 0; from < events; from += batchSize) {
    const some = Array.from({ length: Math.min(batchSize, events - from) }, (_, index) => {
      const body = eventBody(from + index);
      const filler = Buffer.alloc(Math.max(0, bodyKiB * 1_024 - JSON.stringify(body).length - 40));
      crypto.getRandomValues(filler);
      return {
        kind: 'push',
        account,
        body: {
          ...body,
          repository: { name: 'example', description: filler.toString('base64').slice(0, filler.length) },
        },
      };
    });
    made.push(JSON.stringify(some));
  }
  return made;
}

interface Sizes {
  events: number;
  deliveries: number;
  attempts: number;
}

/** Bytes of tables with all partitions, indexes and out-of-line values. */
async function sizesOf(db: Database): Promise<Sizes> {
  const { rows } = await sql<{ root: keyof Sizes; bytes: string }>`
    select root, sum(pg_total_relation_size(relid)) as bytes
    from unnest(array['events', 'deliveries', 'attempts']) as root, pg_partition_tree(root::regclass)
    where isleaf group by root`.execute(db);
  return Object.fromEntries(rows.map(({ root, bytes }) => [root, Number(bytes)])) as unknown as Sizes;
}

/** Waits until every attempt is in the database, which is some milliseconds after the receipt. */
async function recorded(db: Database, count: number): Promise<void> {
  for (;;) {
    const { rows } = await sql<{ count: string }>`select count(*) from attempts`.execute(db);
    if (Number(rows[0]?.count) >= count) return;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}
