/**
 * Twenty accounts of as many apps have twelve requests for pages of a thousand events at a time, and what others notice who have little to do:
 * bursts of requests, a publisher, and new connections beside an address that opens many. As a program of its own
 * (`node pulls.ts`), it sends what the others send.
 */

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent, type RequestOptions, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { createTestClient, mintAccessToken } from '../../test/support/clients/oauth.ts';
import { addAttemptedEvents } from '../deliveries/attempted_events.ts';
import { eventBody, percentile } from '../deliveries/support.ts';
import { monotonicMs } from '../support/measure.ts';
import { makeCrowd } from './crowd.ts';
import type { Check, Incident, Size } from './row.ts';
import { finish, measureAlone, measureIncident, type Stage, withStage } from './stage.ts';

const pullers = 20;
const pullsOfEach = 12;
const eventsOfEach = 2_000;
/** Seconds of the pulls before anything is measured beside them: whoever has most must be known. */
const beginSeconds = 5;

/** A stranger's burst of six requests, every second. Without a right of short bursts, half of them and more are refused. */
export const bursts: Incident = (size) =>
  beside({ name: 'bursts', refusedMax: 2, connections: 0 }, size, async (stage, seconds) => {
    const answers = new Answers();
    const agent = new Agent({ keepAlive: true });
    const send = await listOf(stage, agent);
    await every(1_000, seconds, () => Array.from({ length: 6 }, () => answers.add(send())));
    agent.destroy();
    return answers;
  });

/** A publisher of a hundred events a second, one in each request: more than a twentieth of what the node can do then. */
export const publishers: Incident = (size) =>
  beside({ name: 'publishers', refusedMax: 20, connections: 0 }, size, async (stage, seconds) => {
    const answers = new Answers();
    const agent = new Agent({ keepAlive: true });
    const [member] = await makeCrowd(stage.bench, {
      users: 1,
      subscriptionsOfEach: 1,
      urlOf: () => stage.othersUrl,
    });
    const client = await createTestClient(stage.bench, { scopes: ['write:events'] });
    const { accessToken } = await mintAccessToken(stage.bench, { client, scopes: ['write:events'] });
    const body = JSON.stringify([{ kind: 'push', account: member?.accountId, body: eventBody('published') }]);
    const options = { agent, method: 'POST', path: '/events', headers: headersOf(accessToken, body) };
    await every(10, seconds, () => [answers.add(ask(stage.bench.config.port, options, body))]);
    agent.destroy();
    return answers;
  });

/** A stranger's new connection for each request, ten a second, while another address opens 1,500 and sends a request on each. */
export const newConnections: Incident = (size) =>
  beside({ name: 'new-connections', refusedMax: 2, connections: 1_500 }, size, async (stage, seconds) => {
    const answers = new Answers();
    const send = await listOf(stage, new Agent({ keepAlive: false }));
    await every(100, seconds, () => [answers.add(send())]);
    return answers;
  });

/** What was answered, and how fast. */
class Answers {
  readonly #ms: number[] = [];
  #refused = 0;

  async add(answer: Promise<Answer>): Promise<void> {
    const { status, ms } = await answer;
    if (status === 200 || status === 202) this.#ms.push(ms);
    else this.#refused += 1;
  }

  checks(refusedMax: number): Check[] {
    return [
      {
        what: 'refused, %',
        value: (100 * this.#refused) / (this.#refused + this.#ms.length),
        max: refusedMax,
      },
      { what: 'p50, ms', value: percentile(this.#ms, 0.5), max: 250 },
      { what: 'max, ms', value: percentile(this.#ms, 1), max: 1_000 },
    ];
  }

  toString(): string {
    const [p50, max] = [0.5, 1].map((part) => percentile(this.#ms, part).toFixed(0));
    return `${this.#ms.length} answered, ${p50}, ${max} ms; ${this.#refused} refused`;
  }
}

interface Case {
  name: string;
  /** Percents of the requests that may be refused. */
  refusedMax: number;
  /** How many connections another address has, always new ones. */
  connections: number;
}

/** Measures requests alone and beside the pulls. */
function beside(
  { name, refusedMax, connections }: Case,
  size: Size,
  measure: (stage: Stage, seconds: number) => Promise<Answers>,
) {
  return withStage(size, async (stage) => {
    const pulls: Pull[] = [];
    for (let count = 0; count < pullers; count += 1) {
      const [member] = await makeCrowd(stage.bench, {
        users: 1,
        subscriptionsOfEach: 1,
        urlOf: () => stage.othersUrl,
      });
      if (member === undefined) throw new Error('no puller');
      await addAttemptedEvents(stage.bench, member.accountId, eventsOfEach);
      const path = `/subscriptions/${member.subscriptions[0]}/events?limit=1000`;
      pulls.push({ path, token: await stage.tokenOf(member) });
    }
    await measureAlone(stage);
    const alone = await measure(stage, size.of(5, 20));
    let during = new Answers();
    let pulled = 0;
    await measureIncident(stage, async () => {
      const others = await startOthers({ port: stage.bench.config.port, pulls, connections });
      await sleep(beginSeconds * 1_000);
      during = await measure(stage, size.of(10, 30));
      pulled = await others.end();
    });
    const note = `alone ${alone}; during ${during}; ${pulled} pages pulled`;
    return [await finish(stage, name, null, during.checks(refusedMax), note)];
  });
}

/** @returns what sends the request of a stranger for a short list */
async function listOf(stage: Stage, agent: Agent): Promise<() => Promise<Answer>> {
  const [member] = await makeCrowd(stage.bench, {
    users: 1,
    subscriptionsOfEach: 1,
    urlOf: () => stage.othersUrl,
  });
  if (member === undefined) throw new Error('no stranger');
  const headers = headersOf(await stage.tokenOf(member));
  return () => ask(stage.bench.config.port, { agent, path: '/subscriptions', headers });
}

const headersOf = (token: string, body?: string): Record<string, string | number> => ({
  authorization: `Bearer ${token}`,
  ...(body === undefined
    ? {}
    : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
});

/** Begins work at fixed times, whether or not earlier work has ended. Waits for the last. */
async function every(pauseMs: number, seconds: number, work: () => Promise<void>[]): Promise<void> {
  const running: Promise<void>[] = [];
  const begunAt = performance.now();
  for (let at = begunAt; at < begunAt + seconds * 1_000; at += pauseMs) {
    await sleep(Math.max(0, at - performance.now()));
    running.push(...work());
  }
  await Promise.all(running);
}

interface Answer {
  /** 0 if there is no response. */
  status: number;
  /** Until the whole response has arrived. */
  ms: number;
}

function ask(port: number, options: RequestOptions, body?: string): Promise<Answer> {
  const from = monotonicMs();
  return new Promise((resolve) => {
    const end = (status: number) => resolve({ status, ms: monotonicMs() - from });
    request({ host: '127.0.0.1', port, ...options }, (response) => {
      response.resume().once('error', () => end(0));
      response.once('end', () => end(response.statusCode as number));
    })
      .once('error', () => end(0))
      .end(body);
  });
}

interface Pull {
  path: string;
  token: string;
}

interface Others {
  port: number;
  pulls: Pull[];
  /** How many connections another address has, always new ones. */
  connections: number;
}

async function startOthers(others: Others): Promise<{ end: () => Promise<number> }> {
  const child: ChildProcess = fork(fileURLToPath(import.meta.url));
  child.send(others);
  return {
    async end() {
      child.send('end');
      const [pulled] = await once(child, 'message');
      child.disconnect();
      return pulled as number;
    },
  };
}

/** Pulls, and opens connections, until the parent process has enough. */
async function beOthers({ port, pulls, connections }: Others): Promise<void> {
  let pulled = 0;
  for (const [index, { path, token }] of pulls.entries()) {
    const agent = new Agent({ keepAlive: true });
    const options = { agent, path, headers: headersOf(token), localAddress: `127.0.1.${index + 1}` };
    const pull = async () => {
      for (;;) {
        const { status } = await ask(port, options);
        if (status === 200) pulled += 1;
        else await sleep(200);
      }
    };
    for (let count = 0; count < pullsOfEach; count += 1) void pull();
  }
  const agent = new Agent({ keepAlive: false });
  const connect = async () => {
    for (;;) await ask(port, { agent, path: '/livez', localAddress: '127.0.2.1' });
  };
  for (let count = 0; count < connections; count += 1) void connect();
  process.on('message', (message) => {
    if (message === 'end') process.send?.(pulled);
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  process.on('disconnect', () => process.exit());
  const [others] = (await once(process, 'message')) as [Others];
  await beOthers(others);
}
