/**
 * What `events/poll` with nothing new costs in processor time and transactions, for agents of several grants that poll at once; and what idle
 * streams of `events/stream` cost: resident memory soon after they were opened, resident memory when the server has collected
 * its garbage by itself, what remains after a forced collection, processor time and transactions a second.
 */

import { Agent, type ClientRequest, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { callMcp, mcpToken, statelessHeaders, statelessMeta } from '../../test/support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../../test/support/clients/oauth.ts';
import { freePort } from '../../test/support/servers/server.ts';
import { cpuMicros, residentBytes } from '../deliveries/processes.ts';
import { type Bench, openBench, startNuncio } from '../deliveries/support.ts';
import { collect } from '../support/inspector.ts';
import { loadToTheEnd } from '../support/load.ts';

const rounds = 3;
const settleMs = 10_000;
/** The server collects its garbage when it was idle for one of these periods, which begin at its start. */
const restMs = 30_000;
const measureMs = 10_000;
/** Agents that poll at once, each with one connection. */
const polling = [1, 4, 16];
/** Of the 20 lanes of a grant, one is polled. */
const streamsPerAgent = 20;
/** Streams that are opened at once. */
const opened = 20;
const mebibyte = 1_048_576;
const params = { name: 'push', cursor: null };

interface Polling {
  token: string;
  cursor: string;
}

export async function measureEvents([
  streamsText = '1000',
  secondsText = '10',
]: readonly string[]): Promise<void> {
  const bench = await openBench();
  try {
    const inspector = await freePort();
    const server = await startNuncio(bench, [`--inspect=127.0.0.1:${inspector}`]);
    try {
      const pid = server.child.pid as number;
      const agents = await createAgents(bench, Math.ceil(Number(streamsText) / streamsPerAgent));
      for (const count of polling) {
        await measurePolls(bench, pid, agents.slice(0, count), Number(secondsText) * 1_000);
      }
      await measureStreams({ bench, pid, inspector }, agents, Number(streamsText));
    } finally {
      await server.stop();
    }
  } finally {
    await bench.close();
  }
}

async function createAgents({ db, config, baseUrl }: Bench, count: number): Promise<Polling[]> {
  const client = await createTestClient({ db });
  const agents: Polling[] = [];
  for (let index = 0; index < count; index += 1) {
    const account = await createTestAccount({ db });
    const at = { db, config, baseUrl };
    const { accessToken: token } = await mcpToken(at, { account, client, scopes: ['read:posts'] });
    // The lanes that are streamed later.
    for (let ref = 0; ref < streamsPerAgent - 1; ref += 1) {
      await callMcp({ baseUrl }, token, 'events/poll', { ...params, arguments: { ref: String(ref) } });
    }
    const { body } = await callMcp({ baseUrl }, token, 'events/poll', params);
    agents.push({ token, cursor: body.result.cursor });
  }
  return agents;
}

async function measurePolls(
  bench: Bench,
  pid: number,
  agents: readonly Polling[],
  milliseconds: number,
): Promise<void> {
  const pollAll = async () => {
    const loads = agents.map((polling) =>
      loadToTheEnd({
        ...{ port: bench.config.port, connections: 1, milliseconds, status: 200 },
        request: requestText(bench, polling),
      }),
    );
    return (await Promise.all(loads)).reduce((sum, count) => sum + count, 0);
  };
  await pollAll();
  for (let round = 1; round <= rounds; round += 1) {
    const nodeBefore = cpuMicros([pid]);
    const postgres = bench.postgresPids();
    const postgresBefore = cpuMicros(postgres);
    const transactionsBefore = await countTransactions(bench);
    const begunAt = performance.now();
    const polls = await pollAll();
    const seconds = (performance.now() - begunAt) / 1_000;
    const node = (cpuMicros([pid]) - nodeBefore) / polls;
    const ofPostgres = (cpuMicros(postgres) - postgresBefore) / polls;
    const transactions = ((await countTransactions(bench)) - transactionsBefore) / polls;
    console.log(
      `${agents.length} agents, round ${round}: ${Math.round(polls / seconds)} polls/s, ` +
        `${Math.round(node)} µs of Node and ${Math.round(ofPostgres)} µs of PostgreSQL each, ${transactions.toFixed(2)} transactions`,
    );
  }
}

async function countTransactions({ db }: Pick<Bench, 'db'>): Promise<number> {
  const { rows } = await sql<{ count: string }>`
    select xact_commit as count from pg_stat_database where datname = current_database()`.execute(db);
  return Number(rows[0]?.count);
}

function requestText({ baseUrl }: Bench, { token, cursor }: Polling): string {
  const method = 'events/poll';
  const body = JSON.stringify({
    ...{ jsonrpc: '2.0', id: 1, method },
    params: { _meta: statelessMeta, name: 'push', cursor },
  });
  const headers = {
    host: new URL(baseUrl).host,
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
    ...statelessHeaders(method),
  };
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  return `POST /mcp HTTP/1.1\r\n${lines.join('')}\r\n${body}`;
}

interface Measured {
  bench: Bench;
  pid: number;
  /** Port of its inspector. */
  inspector: number;
}

async function measureStreams(
  { bench, pid, inspector }: Measured,
  agents: readonly Polling[],
  count: number,
): Promise<void> {
  const idle = await restUntilIdle(bench, pid, inspector);
  // What as many requests leave behind without a stream that stays open.
  for (const stream of await openStreams(bench, agents, count)) stream.destroy();
  const without = await readResident(pid);
  const idleHeap = await collect(inspector);
  const streams = await openStreams(bench, agents, count);
  console.log(`${count} streams are open`);
  const open = await readResident(pid);
  const rested = await readCost(bench, pid);
  const heap = await collect(inspector);
  const forced = residentBytes(pid);
  const above = (bytes: number) => ((bytes - idle.bytes) / mebibyte).toFixed(1);
  const show = ({ soon, rested: later }: Resident) =>
    `${above(soon)} after ${settleMs / 1_000} s, ${above(later)} after ${(settleMs + restMs) / 1_000} s`;
  console.log(
    `MiB above idle: ${count} idle streams ${show(open)}, ${above(forced)} after a forced collection; ` +
      `as many that were closed at once ${show(without)}`,
  );
  console.log(
    `each keeps ${Math.round((heap.objects - idleHeap.objects) / count)} bytes of objects and ${Math.round((heap.buffers - idleHeap.buffers) / count)} of buffers`,
  );
  console.log(
    `${(rested.cpuPerSecond / 1_000).toFixed(1)} ms of Node a second (idle: ${(idle.cpuPerSecond / 1_000).toFixed(1)}), ` +
      `${rested.transactions.toFixed(1)} transactions a second (idle: ${idle.transactions.toFixed(1)})`,
  );
  for (const stream of streams) stream.destroy();
}

/** What earlier requests left is collected. */
async function restUntilIdle(bench: Bench, pid: number, inspector: number) {
  await collect(inspector);
  await sleep(restMs);
  return readCost(bench, pid);
}

interface Resident {
  /** Bytes some time after now, and when the server has collected its garbage. */
  soon: number;
  rested: number;
}

async function readResident(pid: number): Promise<Resident> {
  await sleep(settleMs);
  const soon = residentBytes(pid);
  await sleep(restMs);
  return { soon, rested: residentBytes(pid) };
}

async function openStreams(
  bench: Bench,
  agents: readonly Polling[],
  count: number,
): Promise<ClientRequest[]> {
  const streams: ClientRequest[] = [];
  while (streams.length < count) {
    // So many at once that a node on a busy machine refuses none.
    const opening = Array.from({ length: Math.min(opened, count - streams.length) }, (_, offset) => {
      const index = streams.length + offset;
      const own = agents[index % agents.length] as Polling;
      const ref = Math.floor(index / agents.length) % (streamsPerAgent - 1);
      return openStream(bench, own.token, String(ref));
    });
    streams.push(...(await Promise.all(opening)));
  }
  return streams;
}

const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY });

/** Resolves when the stream has begun. */
function openStream({ baseUrl }: Bench, token: string, ref: string): Promise<ClientRequest> {
  const method = 'events/stream';
  const streamed = { ...params, arguments: { ref }, _meta: statelessMeta };
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: streamed });
  const headers = {
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    ...statelessHeaders(method),
  };
  return new Promise((resolve, reject) => {
    const sent = request(`${baseUrl}/mcp`, { agent, method: 'POST', headers }, (response) => {
      if (response.statusCode !== 200) reject(new Error(`the stream got ${response.statusCode}`));
      response.once('data', () => resolve(sent));
      response.resume();
      response.on('error', () => {});
    });
    sent.on('error', reject).end(body);
  });
}

/** Over some time. */
async function readCost(bench: Bench, pid: number) {
  const before = { cpu: cpuMicros([pid]), transactions: await countTransactions(bench) };
  await sleep(measureMs);
  const seconds = measureMs / 1_000;
  return {
    bytes: residentBytes(pid),
    cpuPerSecond: (cpuMicros([pid]) - before.cpu) / seconds,
    transactions: ((await countTransactions(bench)) - before.transactions) / seconds,
  };
}
