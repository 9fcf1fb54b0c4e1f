/** What every incident needs: a database, a server, a stranger, a subscriber for the others, and tokens. */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import pg from 'pg';
import { searchPathStatement } from '../../src/database/schema.ts';
import { createTestClient, mintAccessToken } from '../../test/support/clients/oauth.ts';
import {
  type Bench,
  type BenchSubscriber,
  eventBody,
  type GrantPlace,
  type NuncioServer,
  openBench,
  publishEvents,
  startNuncio,
  startSubscriber,
} from '../deliveries/support.ts';
import { type CrowdMember, makeCrowd, scopes } from './crowd.ts';
import type { Check, Row, Size } from './row.ts';
import { Stranger } from './stranger.ts';

const warmSeconds = 4;
/** The tokens of a bench of half an hour. */
const tokenSeconds = 7_200;
const eventsOfRequest = 1_000;

export interface Stage {
  bench: Bench;
  size: Size;
  stranger: Stranger;
  /** Accepts and counts the others' deliveries. */
  others: BenchSubscriber;
  /** The URLs of `others` and of the stranger. */
  othersUrl: string;
  strangerUrl: string;
  /** May publish events. */
  token: string;
  /** The process id of the server. */
  pid: () => number;
  restart: () => Promise<void>;
  /** Publishes events of an account, with bodies of 1 KB. */
  publish: (accountId: string, count: number, kind?: string, body?: unknown) => Promise<void>;
  tokenOf: (place: GrantPlace) => Promise<string>;
}

export interface StageOptions {
  /** The stranger's URL, if it differs from that of its receiver. */
  strangerUrl?: (port: number) => string;
  /** The app of which the stranger is a user. */
  strangerClientId?: (bench: Bench) => Promise<string>;
}

/** Runs an incident on a new database. */
export async function withStage<T>(
  size: Size,
  work: (stage: Stage) => Promise<T>,
  options: StageOptions = {},
): Promise<T> {
  const [receiver, others] = [await startSubscriber(), await startSubscriber()];
  const bench = await openBench();
  let server = await startServer(bench);
  try {
    const publisher = await createTestClient(bench, { scopes: ['write:events'] });
    const claims = { exp: Math.floor(Date.now() / 1_000) + tokenSeconds };
    const minted = await mintAccessToken(bench, { client: publisher, scopes: ['write:events'], claims });
    const token = minted.accessToken;
    const port = receiver.ports.accept;
    const url = options.strangerUrl?.(port) ?? `http://127.0.0.1:${port}/hooks`;
    const clientId = await options.strangerClientId?.(bench);
    const [place] = (await makeCrowd(bench, {
      users: 1,
      subscriptionsOfEach: 1,
      urlOf: () => url,
      ...(clientId === undefined ? {} : { clientId }),
    })) as [CrowdMember];
    return await work({
      bench,
      size,
      stranger: new Stranger({ bench, receiver, token, accountId: place.accountId }),
      others,
      othersUrl: `http://127.0.0.1:${others.ports.accept}/hooks`,
      strangerUrl: url,
      token,
      pid: () => server.child.pid as number,
      restart: async () => {
        await server.stop();
        server = await startServer(bench);
      },
      publish: (account, count, kind = 'push', body = undefined) =>
        publishMany(bench, token, account, count, kind, body),
      tokenOf: async ({ accountId, clientId, grantId }) => {
        const holder = { account: { id: accountId }, client: { id: clientId }, scopes, grantId };
        return (await mintAccessToken(bench, holder)).accessToken;
      },
    });
  } finally {
    server.child.kill('SIGKILL');
    receiver.stop();
    others.stop();
    await sleep(200);
    await bench.close();
  }
}

/** Incidents fill the log with the same warnings. */
function startServer(bench: Bench): Promise<NuncioServer> {
  return startNuncio(bench, [], { logLevel: 'fatal' });
}

async function publishMany(
  bench: Bench,
  token: string,
  account: string,
  count: number,
  kind: string,
  body: unknown,
): Promise<void> {
  for (let from = 0; from < count; from += eventsOfRequest) {
    const events = Array.from({ length: Math.min(eventsOfRequest, count - from) }, (_, index) => ({
      kind,
      account,
      body: body ?? eventBody(from + index),
    }));
    await publishEvents(bench, token, events);
  }
}

/** Measures the stranger alone, from a warm state on. */
export async function measureAlone({ stranger, size }: Stage, seconds = size.of(5, 20)): Promise<void> {
  await stranger.begin();
  await sleep(warmSeconds * 1_000);
  await stranger.phase('alone', seconds);
}

/**
 * Measures the stranger during the incident, which lasts until the work ends but for some seconds at least, and after it.
 */
export async function measureIncident(
  stage: Stage,
  work: () => Promise<void>,
  seconds = stage.size.of(8, 20),
): Promise<void> {
  const { stranger, size } = stage;
  await stranger.phase('during', async () => {
    await Promise.all([work(), sleep(seconds * 1_000)]);
  });
  await stranger.phase('after', size.of(5, 15));
}

/** Ends the measurement. The stranger's events must all arrive, and none may take longer than `maxMs` during the incident. */
export async function finish(
  { stranger }: Stage,
  incident: string,
  maxMs: number | null,
  checks: readonly Check[] = [],
  note?: string,
): Promise<Row> {
  const { phases, missing } = await stranger.end();
  const isSlow: Check[] =
    maxMs === null ? [] : [{ what: 'max during, ms', value: phases.during?.max ?? Number.NaN, max: maxMs }];
  const all = [...isSlow, { what: 'missing', value: missing, max: 0 }, ...checks];
  return { incident, phases, missing, checks: all, ...(note === undefined ? {} : { note }) };
}

/** A session of somebody else: no timeout of the server's pool applies to it. */
export async function openForeignSession({ bench }: Stage): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: bench.databaseUrl, application_name: 'foreign' });
  client.on('error', () => {});
  await client.connect();
  await client.query(searchPathStatement(bench.databaseUrl));
  return client;
}

/** Repeats a question until its answer is true. @returns false after some seconds without one */
export async function waitUntil(
  seconds: number,
  ask: () => Promise<boolean>,
  pauseMs = 100,
): Promise<boolean> {
  const until = performance.now() + seconds * 1_000;
  while (!(await ask())) {
    if (performance.now() > until) return false;
    await sleep(pauseMs);
  }
  return true;
}

/** Whether fan-out has processed every event. */
export async function isFannedOut({ bench }: Stage): Promise<boolean> {
  const { rows } = await sql`select from outbox limit 1`.execute(bench.db);
  return rows.length === 0;
}
