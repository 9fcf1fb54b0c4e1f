/**
 * The fault test: random publishing, subscribers that are slow, refuse, reset, fail and say goodbye, withdrawals, and
 * `kill -9` of the server, from a seed. Afterwards every accepted event was delivered to exactly the subscriptions
 * that were allowed to have it, at least once, each sequence without a gap, and nothing a second after a withdrawal.
 *
 * Short here; `npm run soak` runs it for minutes. `SOAK_SEED` repeats a run.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { loadConfig } from '../src/config/config.ts';
import { openDatabase } from '../src/database/database.ts';
import { withdrawGrant } from '../src/grants/grant.ts';
import { type ApiAnswer, requester } from './support/api.ts';
import { createDatabase } from './support/database.ts';
import { createTestClient, mintAccessToken } from './support/oauth.ts';
import { type NuncioProcess, startProcess } from './support/process.ts';
import { freePort, testSecret } from './support/server.ts';
import { type Received, startSubscriber } from './support/subscriber.ts';
import { type App, createApp, pushBody, subscribe } from './support/webhooks.ts';

const seconds = Number(process.env.SOAK_SECONDS ?? 15);
const seed = Number(process.env.SOAK_SEED ?? Date.now() % 1_000_000);

/** Mulberry32: the same numbers for the same seed. */
function createRandom(state: number): () => number {
  let a = state;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

interface Member {
  app: App;
  subscriptionId: string;
  path: string;
  /** Marks of events that were accepted for the account while the grant was in force. */
  expected: Set<string>;
  /** Marks of events that may or may not come: published as the grant ended. */
  possible: Set<string>;
  withdrawnAt: number | null;
}

test(`webhooks 62: whatever happens, nothing is lost and nobody gets what is not theirs (seed ${seed})`, async (t) => {
  t.diagnostic(`SOAK_SEED=${seed} SOAK_SECONDS=${seconds}`);
  const random = createRandom(seed);
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const settings = {
    PORT: String(await freePort()),
    DATABASE_URL: database.url,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    NUNCIO_RETRY_SCHEDULE: '1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s',
    LOG_LEVEL: 'fatal',
  };
  const config = loadConfig(settings, 'start');
  const server = { db, config, baseUrl: config.baseUrl } as never;
  let isCalm = false;
  const subscriber = await startSubscriber(t, (_received, response) => {
    const dice = isCalm ? 1 : random();
    if (dice < 0.05) response.socket?.resetAndDestroy();
    else if (dice < 0.15) response.writeHead(500).end();
    else if (dice < 0.18) response.writeHead(200).write(Buffer.alloc(100_000));
    else if (dice < 0.3) setTimeout(() => response.writeHead(204).end(), random() * 300);
    else response.writeHead(204).end();
  });

  let running: NuncioProcess = startProcess(t, ['start'], settings);
  await running.ready();
  const machine = await createTestClient(server, { scopes: ['write:events'] });
  const { accessToken } = await mintAccessToken(server, { client: machine, scopes: ['write:events'] });
  const publisher = requester(server, accessToken);
  const members: Member[] = [];
  const join = async () => {
    const app = await createApp(server);
    const path = `/${members.length}`;
    const { id } = await subscribe(app, {
      url: subscriber.url + path,
      kinds: ['push'],
      ordered: random() < 0.3,
    });
    members.push({
      app,
      subscriptionId: id,
      path,
      expected: new Set(),
      possible: new Set(),
      withdrawnAt: null,
    });
  };
  for (let count = 0; count < 6; count++) await join();

  let mark = 0;
  let kills = 0;
  const end = Date.now() + seconds * 1_000;
  const publishSome = async () => {
    const events = [];
    const marks: [Member, string][] = [];
    for (let count = Math.ceil(random() * 50); count > 0; count--) {
      const member = members[Math.floor(random() * members.length)] as Member;
      mark += 1;
      const body = pushBody(mark);
      // A chosen id makes it safe to try again what the server died on.
      events.push({ id: `soak-${mark}`, kind: 'push', account: member.app.account.id, body });
      marks.push([member, String(mark)]);
    }
    const wasWithdrawn = new Map(marks.map(([member]) => [member, member.withdrawnAt !== null]));
    for (;;) {
      const answer: ApiAnswer | undefined = await publisher('POST', '/events', { json: events }).catch(
        () => undefined,
      );
      if (answer?.status === 202) break;
      assert.ok(
        answer === undefined || answer.status >= 500,
        `publishing gave ${answer?.status}: ${answer?.text}`,
      );
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    for (const [member, name] of marks) {
      if (wasWithdrawn.get(member)) continue;
      (member.withdrawnAt === null ? member.expected : member.possible).add(name);
    }
  };
  while (Date.now() < end) {
    const dice = random();
    if (dice < 0.04 && kills < seconds / 4) {
      kills += 1;
      await Promise.all([
        publishSome(),
        running.end('SIGKILL').then(() => {
          running = startProcess(t, ['start'], settings);
          return running.ready();
        }),
      ]);
    } else if (dice < 0.07 && members.filter(({ withdrawnAt }) => withdrawnAt === null).length > 3) {
      const member = members[Math.floor(random() * members.length)] as Member;
      if (member.withdrawnAt !== null) continue;
      await withdrawGrant(db, member.app.grantId, 'user');
      member.withdrawnAt = Date.now();
      // What was not sent yet need not come any more.
      for (const name of member.expected) member.possible.add(name);
      member.expected.clear();
      await join();
    } else {
      await publishSome();
      await new Promise((resolve) => setTimeout(resolve, random() * 60));
    }
  }
  isCalm = true;
  t.diagnostic(`${mark} events, ${members.length} subscriptions, ${kills} kills`);

  const marksAt = (path: string) =>
    new Set(
      subscriber.received
        .filter((one) => one.path === path)
        .map(({ body }) => JSON.parse(body).ref.slice('refs/heads/'.length)),
    );
  const missing = () =>
    members.flatMap(({ path, expected }) => {
      const seen = marksAt(path);
      return [...expected].filter((name) => !seen.has(name)).map((name) => `${path}: ${name}`);
    });
  const patience = Date.now() + 120_000;
  while (missing().length > 0 && Date.now() < patience)
    await new Promise((resolve) => setTimeout(resolve, 250));
  assert.deepEqual(missing(), []);
  for (const { path, expected, possible, withdrawnAt } of members) {
    const own: Received[] = subscriber.received.filter((one) => one.path === path);
    for (const name of marksAt(path))
      assert.ok(expected.has(name) || possible.has(name), `${path} got ${name}`);
    const bySequence = new Map<string, string>();
    for (const { headers, body } of own) {
      const sequence = headers['nuncio-sequence'] as string;
      const content = `${headers['nuncio-delivery']} ${body}`;
      assert.equal(bySequence.get(sequence) ?? content, content, 'one sequence, two deliveries');
      bySequence.set(sequence, content);
    }
    if (withdrawnAt === null) {
      const sequences = [...bySequence.keys()].map(Number).sort((a, b) => a - b);
      assert.deepEqual(
        sequences,
        sequences.map((_sequence, index) => index + 1),
      );
    } else {
      assert.deepEqual(
        own.filter(({ at }) => at > withdrawnAt + 1_000).map(({ at }) => at - withdrawnAt),
        [],
      );
    }
  }
  const { rows } = await sql<{ left: string }>`select count(*) as left from outbox`.execute(db);
  assert.equal(rows[0]?.left, '0');
  assert.equal(await running.end('SIGTERM'), 0);
});
