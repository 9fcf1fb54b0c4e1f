/**
 * `npx node bench/pull.ts [events] [waiting]`: the rate at which one consumer that was away reads its events by `GET
 * /subscriptions/<id>/events`, and what waiting requests cost: resident memory, and transactions of the database a second.
 */

import { Agent, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { mintAccessToken } from '../test/support/clients/oauth.ts';
import { addAttemptedEvents } from './deliveries/attempted_events.ts';
import { residentBytes } from './deliveries/processes.ts';
import { type Bench, createSubscribers, openBench, startNuncio } from './deliveries/support.ts';
import { record } from './support/record.ts';

const [eventsText = '100000', waitingText = '1000'] = process.argv.slice(2);
const pageSize = 1_000;
const chunk = 50_000;
const settleMs = 5_000;
/** From one waiting request to the next. */
const startMs = 10;
const measureMs = 20_000;
const mebibyte = 1_048_576;
const scopes = ['read:posts', 'read:webhooks', 'write:webhooks'];

interface Consumer {
  token: string;
  path: string;
}

const bench = await openBench();
try {
  const count = Number(eventsText);
  const waitingCount = Number(waitingText);
  // Nothing listens there: the events are pulled.
  const { client, accounts } = await createSubscribers(
    bench,
    waitingCount + 1,
    () => 'http://127.0.0.1:9/hooks',
  );
  for (let left = count; left > 0; left -= chunk) {
    await addAttemptedEvents(bench, accounts[0] as string, Math.min(left, chunk));
  }
  await sql`vacuum analyze`.execute(bench.db);
  const server = await startNuncio(bench);
  try {
    // The first start has made the keys that sign tokens.
    const consumers = await Promise.all(accounts.map((account) => consumerOf(bench, client.id, account)));
    const [reader, ...waiting] = consumers as [Consumer, ...Consumer[]];
    await catchUp(reader, count);
    await measureWaiting(server.child.pid as number, waiting);
  } finally {
    await server.stop();
  }
} finally {
  await bench.close();
}

async function consumerOf({ db, config }: Bench, clientId: string, accountId: string): Promise<Consumer> {
  const { rows } = await sql<{ id: string; grant_id: string }>`
    select id, grant_id from subscriptions where account_id = ${accountId}`.execute(db);
  const { id, grant_id: grantId } = rows[0] as { id: string; grant_id: string };
  const { accessToken } = await mintAccessToken(
    { db, config },
    { account: { id: accountId }, client: { id: clientId }, scopes, grantId },
  );
  return { token: accessToken, path: `/subscriptions/${id}/events` };
}

async function catchUp({ token, path }: Consumer, count: number): Promise<void> {
  const headers = { authorization: `Bearer ${token}` };
  for (const round of [1, 2, 3]) {
    const begunAt = performance.now();
    let seen = 0;
    let bytes = 0;
    for (let next = `${path}?limit=${pageSize}`; seen < count; ) {
      const response = await fetch(bench.baseUrl + next, { headers });
      const text = await response.text();
      const page = JSON.parse(text);
      if (response.status !== 200 || page.items.length === 0)
        throw new Error(`${response.status}: ${text.slice(0, 200)}`);
      seen += page.items.length;
      bytes += text.length;
      next = page._links.next.href;
    }
    const seconds = (performance.now() - begunAt) / 1_000;
    record({ of: 'pull', round, perSecond: seen / seconds });
    console.log(
      `round ${round}: ${seen} events in ${seconds.toFixed(1)} s, ${Math.round(seen / seconds)}/s, ${Math.round(bytes / seen)} bytes each`,
    );
  }
}

async function measureWaiting(pid: number, consumers: readonly Consumer[]): Promise<void> {
  await sleep(settleMs);
  const idle = { bytes: residentBytes(pid), perSecond: await transactionsPerSecond() };
  const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY });
  const open: Promise<number | undefined>[] = [];
  for (const { token, path } of consumers) {
    const sent = new Promise<number | undefined>((resolve, reject) => {
      const options = { agent, headers: { authorization: `Bearer ${token}` } };
      request(`${bench.baseUrl}${path}?wait=60`, options, (response) => {
        response.resume().on('end', () => resolve(response.statusCode));
      })
        .on('error', reject)
        .end();
    });
    open.push(sent);
    // Many at once are more than a node on a slow machine admits.
    await sleep(startMs);
  }
  await sleep(settleMs);
  const busy = { bytes: residentBytes(pid), perSecond: await transactionsPerSecond() };
  const statuses = await Promise.all(open);
  agent.destroy();
  const refused = statuses.filter((status) => status !== 200).length;
  console.log(
    `${consumers.length} waiting (${refused} refused): ${((busy.bytes - idle.bytes) / mebibyte).toFixed(1)} MiB above idle, ` +
      `${busy.perSecond.toFixed(1)} transactions a second (idle: ${idle.perSecond.toFixed(1)})`,
  );
}

/** Transactions of the database over some time. */
async function transactionsPerSecond(): Promise<number> {
  const read = async () => {
    const { rows } = await sql<{ count: string }>`
      select xact_commit as count from pg_stat_database where datname = current_database()`.execute(bench.db);
    return Number(rows[0]?.count);
  };
  const before = await read();
  const begunAt = performance.now();
  await sleep(measureMs);
  return ((await read()) - before) / ((performance.now() - begunAt) / 1_000);
}
