/**
 * What `events/poll` with nothing new costs in processor time of the server and of PostgreSQL, and what idle streams of `events/stream`
 * cost: resident memory, processor time and transactions a second.
 */

import { Agent, type ClientRequest, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { callMcp, mcpToken, statelessHeaders, statelessMeta } from '../../test/support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../../test/support/clients/oauth.ts';
import { type Bench, cpuMicros, openBench, residentBytes, startNuncio } from '../deliveries/support.ts';
import { loadToTheEnd } from '../support/load.ts';

const rounds = 3;
const settleMs = 10_000;
const measureMs = 10_000;
const connections = 4;
/** Of the 20 lanes of a grant, one is polled. */
const streamsPerAgent = 20;
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
    const server = await startNuncio(bench);
    try {
      const pid = server.child.pid as number;
      const agents = await createAgents(bench, Math.ceil(Number(streamsText) / streamsPerAgent));
      await measurePolls(bench, pid, agents[0] as Polling, Number(secondsText) * 1_000);
      await measureStreams(bench, pid, agents, Number(streamsText));
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

async function measurePolls(bench: Bench, pid: number, agent: Polling, milliseconds: number): Promise<void> {
  const text = requestText(bench, agent);
  const options = { port: bench.config.port, connections, request: text, status: 200 };
  await loadToTheEnd({ ...options, milliseconds });
  for (let round = 1; round <= rounds; round += 1) {
    const nodeBefore = cpuMicros([pid]);
    const postgres = bench.postgresPids();
    const postgresBefore = cpuMicros(postgres);
    const begunAt = performance.now();
    const polls = await loadToTheEnd({ ...options, milliseconds });
    const seconds = (performance.now() - begunAt) / 1_000;
    const node = (cpuMicros([pid]) - nodeBefore) / polls;
    const ofPostgres = (cpuMicros(postgres) - postgresBefore) / polls;
    console.log(
      `round ${round}: ${Math.round(polls / seconds)} polls/s, ${Math.round(node)} µs of Node and ${Math.round(ofPostgres)} µs of PostgreSQL each`,
    );
  }
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

async function measureStreams(
  bench: Bench,
  pid: number,
  agents: readonly Polling[],
  count: number,
): Promise<void> {
  await sleep(settleMs);
  const idle = await readCost(bench, pid);
  const streams = await Promise.all(
    Array.from({ length: count }, (_, index) => {
      const agent = agents[index % agents.length] as Polling;
      return openStream(
        bench,
        agent.token,
        String(Math.floor(index / agents.length) % (streamsPerAgent - 1)),
      );
    }),
  );
  console.log(`${count} streams are open`);
  await sleep(settleMs);
  const busy = await readCost(bench, pid);
  console.log(
    `${count} idle streams: ${((busy.bytes - idle.bytes) / mebibyte).toFixed(1)} MiB above idle, ` +
      `${(busy.cpuPerSecond / 1_000).toFixed(1)} ms of Node a second (idle: ${(idle.cpuPerSecond / 1_000).toFixed(1)}), ` +
      `${busy.transactions.toFixed(1)} transactions a second (idle: ${idle.transactions.toFixed(1)})`,
  );
  for (const stream of streams) stream.destroy();
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
  const transactionsNow = async () => {
    const { rows } = await sql<{ count: string }>`
      select xact_commit as count from pg_stat_database where datname = current_database()`.execute(bench.db);
    return Number(rows[0]?.count);
  };
  const before = { cpu: cpuMicros([pid]), transactions: await transactionsNow() };
  await sleep(measureMs);
  const seconds = measureMs / 1_000;
  return {
    bytes: residentBytes(pid),
    cpuPerSecond: (cpuMicros([pid]) - before.cpu) / seconds,
    transactions: ((await transactionsNow()) - before.transactions) / seconds,
  };
}
