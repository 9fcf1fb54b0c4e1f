/**
 * Publishing events from another server: durable, in batches, and each event once however often it is
 * retried.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { withdrawToken } from '../../src/grants/withdrawals.ts';
import {
  createPublisher,
  type NewEvent,
  PublishError,
  type PublisherOptions,
} from '../../src/protect/protect.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server, {
  grantTypes: ['client_credentials'],
  scopes: ['write:events'],
  redirectUris: [],
});

type Fetch = NonNullable<PublisherOptions['fetch']>;

function publisher(through: Fetch = fetch, changes: Partial<PublisherOptions> = {}) {
  return createPublisher({
    issuer: server.baseUrl,
    clientId: client.id,
    clientSecret: client.secret ?? '',
    fetch: through,
    ...changes,
  });
}

function paid(id: string, changes: Partial<NewEvent> = {}): NewEvent {
  const body = { invoice: { id, amount: 4_900, currency: 'EUR' } };
  return { kind: 'invoice.paid', account: account.id, body, ...changes };
}

/** The number of stored events for each of these ids. */
async function stored(ids: readonly string[]): Promise<number[]> {
  const { rows } = await sql<{ id: string; count: number }>`
    select id, count(*)::int as count from events where id = any(${[...ids]}) group by id`.execute(server.db);
  const counts = new Map(rows.map(({ id, count }) => [id, count]));
  return ids.map((id) => counts.get(id) ?? 0);
}

function isEvents(url: string): boolean {
  return url === `${server.baseUrl}/events`;
}

test('publish accepts one event or several, with or without ids', async () => {
  const { publish } = publisher();
  const [one] = await publish(paid('single'));
  assert.deepEqual(await stored([one as string]), [1]);
  const ids = await publish([paid('a', { id: 'chosen-a' }), paid('b')]);
  assert.equal(ids[0], 'chosen-a');
  assert.deepEqual(await stored(ids), [1, 1]);
  assert.deepEqual(await publish([]), []);
});

test('publish sends 2,500 events in order in three batches with one token', async () => {
  const asked: string[] = [];
  const { publish } = publisher(async (url, init) => {
    asked.push(new URL(url).pathname);
    return fetch(url, init);
  });
  const events = Array.from({ length: 2_500 }, (_, index) =>
    paid(`batch-${index}`, { id: `batch-${index}` }),
  );
  const ids = await publish(events);
  assert.equal(ids.length, 2_500);
  assert.deepEqual(asked, [
    '/.well-known/oauth-authorization-server',
    '/oauth/token',
    '/events',
    '/events',
    '/events',
  ]);
  const { rows } = await sql<{ id: string }>`
    select id from events where id like 'batch-%' order by position`.execute(server.db);
  assert.deepEqual(
    rows.map(({ id }) => id),
    ids,
  );
});

test('publish splits large events by size', async () => {
  let batches = 0;
  const { publish } = publisher(async (url, init) => {
    if (isEvents(url)) batches += 1;
    return fetch(url, init);
  });
  const message = 'x'.repeat(60_000);
  const commits = [1, 2, 3].map((id) => ({ id: String(id), message }));
  const body = { ref: 'refs/heads/main', commits, repository: { name: 'envoy' } };
  const events = Array.from({ length: 60 }, () => ({ kind: 'push', account: account.id, body }));
  const ids = await publish(events);
  assert.deepEqual(new Set(await stored(ids)), new Set([1]));
  assert.ok(batches > 1);
});

test('publish retries after a lost response, and the event exists once', async () => {
  let lost = 0;
  const { publish } = publisher(async (url, init) => {
    const response = await fetch(url, init);
    if (isEvents(url) && lost < 2) {
      lost += 1;
      assert.equal(response.status, 202, 'the server had taken it');
      throw new TypeError('fetch failed');
    }
    return response;
  });
  const ids = await publish([paid('lost'), paid('lost too')]);
  assert.equal(lost, 2);
  assert.deepEqual(await stored(ids), [1, 1]);
});

test('publish retries after 503 and 429, and not before Retry-After', async () => {
  const answers = [
    new Response('{}', { status: 503 }),
    new Response('{}', { status: 429, headers: { 'retry-after': '1' } }),
  ];
  const times: number[] = [];
  const { publish } = publisher(async (url, init) => {
    if (!isEvents(url)) return fetch(url, init);
    times.push(performance.now());
    return answers.shift() ?? fetch(url, init);
  });
  const ids = await publish(paid('busy'));
  assert.deepEqual(await stored(ids), [1]);
  assert.equal(times.length, 3);
  assert.ok((times[2] as number) - (times[1] as number) >= 990);
});

test('publish replaces a revoked token', async () => {
  const tokens: string[] = [];
  const { publish } = publisher(async (url, init) => {
    const response = await fetch(url, init);
    if (url.endsWith('/oauth/token')) {
      const { access_token } = (await response.clone().json()) as { access_token: string };
      tokens.push(access_token);
    }
    return response;
  });
  await publish(paid('before'));
  const { jti } = JSON.parse(Buffer.from(tokens[0]?.split('.')[1] ?? '', 'base64url').toString()) as {
    jti: string;
  };
  await withdrawToken(server.db, jti, new Date(Date.now() + 900_000));
  // Waits until the node rejects the token.
  while (tokens.length < 2) await publish(paid('after'));
  assert.deepEqual(await stored(await publish(paid('later'))), [1]);
});

test('publish names an account by the external id that the application gave it', async () => {
  const ids = await publisher().publish(paid('external', { account: { external_id: 'user-4711' } }));
  const { rows } = await sql<{ external_id: string }>`
    select external_id from events join accounts on accounts.id = account_id where events.id = ${ids[0]}`.execute(
    server.db,
  );
  assert.deepEqual(rows, [{ external_id: 'user-4711' }]);
});

test('publish ends its pause when its signal is aborted, and says how long the server asks to wait', async () => {
  const controller = new AbortController();
  let posts = 0;
  const { publish } = publisher(async (url, init) => {
    if (!isEvents(url)) return fetch(url, init);
    posts += 1;
    setImmediate(() => controller.abort());
    return new Response('{}', { status: 503, headers: { 'retry-after': '86400' } });
  });
  const error = await publish(paid('aborted'), { signal: controller.signal }).catch(
    (thrown: unknown) => thrown,
  );
  assert.ok(error instanceof PublishError);
  assert.deepEqual([error.status, error.retryAfterMs, posts], [503, 86_400_000, 1]);
});

test('publish ends its request when its signal is aborted', async () => {
  const controller = new AbortController();
  const { publish } = publisher(async (url, init) => {
    if (!isEvents(url)) return fetch(url, init);
    setImmediate(() => controller.abort());
    return new Promise<Response>((_resolve, reject) => {
      init?.signal?.addEventListener('abort', () => reject(init.signal?.reason));
    });
  });
  const error = await publish(paid('hanging'), { signal: controller.signal }).catch(
    (thrown: unknown) => thrown,
  );
  assert.ok(error instanceof PublishError);
  assert.equal(error.status, null);
});

test('publish does not retry a refusal, takes nothing of its batch, and reports the rest', async () => {
  let posts = 0;
  const { publish } = publisher(async (url, init) => {
    if (isEvents(url)) posts += 1;
    return fetch(url, init);
  });
  const good = Array.from({ length: 1_000 }, (_, index) => paid(`first-${index}`));
  const rest = [paid('ok'), paid('bad', { body: { invoice: {} } })];
  const error = await publish([...good, ...rest]).catch((thrown: unknown) => thrown);
  assert.ok(error instanceof PublishError);
  assert.equal(error.status, 422);
  assert.equal(error.problem?.status, 422);
  assert.equal(posts, 2);
  assert.equal(error.events.length, 2);
  const ids = error.events.map(({ id }) => id as string);
  assert.ok(ids.every((id) => id.length > 0));
  assert.deepEqual(await stored(ids), [0, 0]);
});

test('publish reports a wrong secret, a missing scope and an unreachable server', async () => {
  const wrong = await publisher(fetch, { clientSecret: 'wrong' })
    .publish(paid('x'))
    .catch((thrown: unknown) => thrown);
  assert.ok(wrong instanceof PublishError);
  assert.match(wrong.message, /no access token for write:events: invalid_client/);
  const poor = await createTestClient(server);
  const refused = await publisher(fetch, { clientId: poor.id, clientSecret: poor.secret ?? '' })
    .publish(paid('x'))
    .catch((thrown: unknown) => thrown);
  assert.ok(refused instanceof PublishError);
  assert.match(refused.message, /no access token for write:events: invalid_scope/);
  const away = async () => {
    throw new TypeError('fetch failed');
  };
  const lost = await publisher(away, { attempts: 2 })
    .publish(paid('x'))
    .catch((thrown: unknown) => thrown);
  assert.ok(lost instanceof PublishError);
  assert.equal(lost.status, null);
  assert.equal(lost.events.length, 1);
});

test('options that cannot work are refused at once', () => {
  for (const changes of [
    { issuer: 'http://id.example' },
    { clientId: '' },
    { clientSecret: '' },
    { attempts: 0 },
  ]) {
    assert.throws(() => publisher(fetch, changes), TypeError);
  }
});
