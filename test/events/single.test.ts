/** Concurrent single events share statements, and each request has its own response. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import { loadConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/database/database.ts';
import { batchSingles, type SingleEvent } from '../../src/events/single.ts';
import type { StoredEvent } from '../../src/events/store.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { type ApiResponse, requester } from '../support/clients/api_client.ts';
import { createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { createDatabase } from '../support/database/database.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { freePort, startTestServer, testSecret } from '../support/servers/server.ts';
import { createApp, createPublisher, pushBody, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_INSECURE_SUBSCRIBERS: '1' });
const publisher = await createPublisher(server);

const markOf = ({ body }: { body: string }) => JSON.parse(body).ref.slice('refs/heads/'.length);

async function storedIds(prefix: string): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from events where body like ${`%${prefix}%`} order by position`.execute(server.db);
  return rows.map(({ id }) => id);
}

test('fifty concurrent events, some invalid, each get their own response, and exactly the valid ones are delivered', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const run = randomUUID();
  const mark = (name: string) => `${run}-${name}`;
  const event = (name: string) => ({ kind: 'push', account: app.account.id, body: pushBody(mark(name)) });
  const used = { ...event('used'), id: mark('used-id') };
  assert.equal((await publisher('POST', '/events', { json: used })).status, 202);

  interface Case {
    json: unknown;
    headers?: Record<string, string>;
    status: number;
    code?: string;
  }
  const cases = new Map<string, Case>();
  for (let index = 0; index < 30; index += 1)
    cases.set(`good-${index}`, { json: event(`good-${index}`), status: 202 });
  for (let index = 0; index < 4; index += 1) {
    const name = `list-${index}`;
    cases.set(name, { json: [event(name)], status: 202 });
    const chosen = `chosen-${index}`;
    cases.set(chosen, { json: { ...event(chosen), id: mark(chosen) }, status: 202 });
    const keyed = `keyed-${index}`;
    cases.set(keyed, { json: event(keyed), headers: { 'idempotency-key': mark(keyed) }, status: 202 });
  }
  const good = [...cases.keys()];
  const stranger = randomUUID();
  cases.set('account', {
    json: { ...event('account'), account: stranger },
    status: 422,
    code: 'unknown-account',
  });
  cases.set('account, id', {
    json: { ...event('account-id'), account: stranger, id: mark('free') },
    status: 422,
    code: 'unknown-account',
  });
  cases.set('account, key', {
    json: { ...event('account-key'), account: stranger },
    headers: { 'idempotency-key': mark('free') },
    status: 422,
    code: 'unknown-account',
  });
  cases.set('kind', { json: { ...event('kind'), kind: 'none' }, status: 422, code: 'unknown-kind' });
  cases.set('schema', { json: { ...event('schema'), body: { ref: 1 } }, status: 422 });
  cases.set('id', {
    json: { ...event('other'), id: mark('used-id') },
    status: 422,
    code: 'id-reused',
  });
  cases.set('key', {
    json: event('key'),
    headers: { 'idempotency-key': 'é' },
    status: 400,
    code: 'invalid-idempotency-key',
  });
  cases.set('json', { json: null, status: 422 });

  const names = [...cases.keys()];
  assert.equal(names.length, 50);
  const answers = await Promise.all(
    names.map(async (name) => {
      const { json, headers } = cases.get(name) as Case;
      return publisher('POST', '/events', { json, ...(headers === undefined ? {} : { headers }) });
    }),
  );
  for (const [index, name] of names.entries()) {
    const { status, code } = cases.get(name) as Case;
    const answer = answers[index] as ApiResponse;
    assert.equal(answer.status, status, `${name}: ${answer.text}`);
    if (code !== undefined) assert.equal(answer.body.code, code, name);
  }
  const ids = good.map((name) => answers[names.indexOf(name)]?.body.ids[0] as string);
  assert.deepEqual((await storedIds(run)).sort(), [...ids, mark('used-id')].sort());
  for (const [index, name] of good.entries()) {
    const { rows } = await sql<{ body: string }>`
      select body from events where id = ${ids[index]}`.execute(server.db);
    assert.equal(markOf(rows[0] as { body: string }), mark(name), 'a response has the id of its own event');
  }
  const received = await subscriber.waitFor(good.length + 1);
  assert.deepEqual(received.map(markOf).sort(), [...good, 'used'].map(mark).sort());
  // A refused event does not use up its id and its idempotency key.
  const headers = { 'idempotency-key': mark('free') };
  const free = { ...event('free'), id: mark('free') };
  assert.equal((await publisher('POST', '/events', { json: free, headers })).status, 202);
});

test('concurrent equal ids are one event, and of two contents one is accepted and the other refused', async () => {
  const app = await createApp(server);
  const run = randomUUID();
  const send = (name: string, content: string) =>
    publisher('POST', '/events', {
      json: {
        id: `${run}-${name}`,
        kind: 'push',
        account: app.account.id,
        body: pushBody(`${run}-${content}`),
      },
    });
  const equal = await Promise.all(Array.from({ length: 20 }, () => send('equal', 'same')));
  assert.ok(equal.every(({ status, body }) => status === 202 && body.id === `${run}-equal`));
  const mixed = await Promise.all(
    Array.from({ length: 20 }, async (_, index) => {
      const content = index % 2 === 0 ? 'even' : 'odd';
      return { content, ...(await send('mixed', content)) };
    }),
  );
  const taken = new Set(mixed.filter(({ status }) => status === 202).map(({ content }) => content));
  assert.equal(taken.size, 1);
  for (const { status, content, body } of mixed) {
    assert.equal(status, taken.has(content) ? 202 : 422);
    if (!taken.has(content)) assert.equal(body.code, 'id-reused');
  }
  assert.deepEqual(await storedIds(run), [`${run}-equal`, `${run}-mixed`]);
});

test('a repeated event is recognized when another content with its id arrives concurrently', async () => {
  const app = await createApp(server);
  const id = `again-${randomUUID()}`;
  const send = (content: string) =>
    publisher('POST', '/events', {
      json: { id, kind: 'push', account: app.account.id, body: pushBody(content) },
    });
  assert.equal((await send('first')).status, 202);
  const answers = await Promise.all([send('other'), send('first'), send('other'), send('first')]);
  assert.deepEqual(
    answers.map(({ status }) => status),
    [422, 202, 422, 202],
  );
});

test('concurrent requests with one Idempotency-Key publish one event', async () => {
  const app = await createApp(server);
  const run = randomUUID();
  const json = { kind: 'push', account: app.account.id, body: pushBody(run) };
  const send = () => publisher('POST', '/events', { json, headers: { 'idempotency-key': run } });
  const answers = await Promise.all(Array.from({ length: 20 }, send));
  assert.ok(answers.every(({ status }) => status === 202 || status === 409));
  const ids = new Set(answers.filter(({ status }) => status === 202).map(({ body }) => body.id));
  assert.equal(ids.size, 1);
  const again = await send();
  assert.equal(again.headers.get('idempotency-replayed'), 'true');
  assert.deepEqual(await storedIds(run), [again.body.id]);
});

test('events of others do not fail with those of an account that is deleted while the batch waits', async () => {
  const [doomed, other] = [await createApp(server), await createApp(server)];
  const run = randomUUID();
  const send = (account: string, key: string) =>
    publisher('POST', '/events', {
      json: { id: `${key}-${run}`, kind: 'push', account, body: pushBody(run) },
      headers: { 'idempotency-key': `${key}-${run}` },
    });
  const [reserved, given] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  // Another transaction has one of the ids, until it is rolled back.
  const reserving = server.db.transaction().execute(async (tx) => {
    await sql`insert into event_ids (id, content) values (${`a-${run}`}, '')`.execute(tx);
    reserved.resolve();
    await given.promise;
    throw new Error('rolled back');
  });
  await reserved.promise;
  const answers = Promise.all([send(doomed.account.id, 'a'), send(other.account.id, 'b')]);
  await until(
    async () => {
      const { rows } = await sql`
        select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into event_ids%'`.execute(
        server.db,
      );
      return rows.length;
    },
    (count) => count === 1,
  );
  await sql`delete from accounts where id = ${doomed.account.id}`.execute(server.db);
  given.resolve();
  await assert.rejects(reserving, /rolled back/);
  const statuses = (await answers).map(({ status, body }) => [status, body.errors?.[0].code]);
  assert.deepEqual(statuses, [
    [422, 'unknown-account'],
    [202, undefined],
  ]);
  assert.equal((await storedIds(run)).length, 1);
});

test('each request is checked by itself: token and scope. Those of a publisher have no limit of rate', async (t) => {
  const limited = await startTestServer(t, { NUNCIO_RATE_LIMIT: '20' });
  const app = await createApp(limited);
  const good = await createPublisher(limited);
  const json = { kind: 'push', account: app.account.id, body: pushBody() };
  const answers = await Promise.all([
    ...Array.from({ length: 30 }, () => good('POST', '/events', { json })),
    app.request('POST', '/events', { json }),
    requester(limited, 'nonsense')('POST', '/events', { json }),
    requester(limited)('POST', '/events', { json }),
  ]);
  const statuses = answers.map(({ status }) => status);
  assert.deepEqual(statuses.slice(30), [403, 401, 401]);
  assert.deepEqual(new Set(statuses.slice(0, 30)), new Set([202]));
  const { rows } = await sql<{ count: string }>`select count(*) from events where kind = 'push'`.execute(
    limited.db,
  );
  assert.equal(Number(rows[0]?.count), 30);
});

/** Counts the transactions that stored the newest events. */
async function transactionsOf(events: number): Promise<number> {
  // Rows of one transaction have the same `xmin`.
  const { rows } = await sql<{ count: string }>`
    select count(distinct xmin::text) from (
      select xmin from events where kind = 'push' order by position desc limit ${events}) as e`.execute(
    server.db,
  );
  return Number(rows[0]?.count);
}

test('concurrent single events share commits, and on an idle server each is written at once', async () => {
  const app = await createApp(server);
  const json = () => ({ kind: 'push', account: app.account.id, body: pushBody() });
  for (let count = 0; count < 5; count += 1)
    assert.equal((await publisher('POST', '/events', { json: json() })).status, 202);
  assert.equal(await transactionsOf(5), 5);
  // While one batch is blocked, all others wait and share the next ones.
  const lock = server.db.transaction().execute(async (tx) => {
    await sql`lock table outbox in share mode`.execute(tx);
    const sent = Array.from({ length: 40 }, () => publisher('POST', '/events', { json: json() }));
    await until(
      async () =>
        (await sql<{ n: string }>`select count(*) as n from pg_locks where not granted`.execute(tx)).rows[0],
      (row) => Number(row?.n) > 0,
    );
    return Promise.all([sent]);
  });
  const [sent] = await lock;
  const answers = await Promise.all(sent);
  assert.ok(answers.every(({ status }) => status === 202));
  const count = await transactionsOf(40);
  assert.ok(count <= 20, `${count} transactions for 40 events`);
});

test('a request whose client disconnected affects no other', async () => {
  const app = await createApp(server);
  const run = randomUUID();
  const { accessToken } = await mintAccessToken(server, {
    client: await createTestClient(server, { scopes: ['write:events'] }),
    scopes: ['write:events'],
  });
  const abort = new AbortController();
  const gone = Array.from({ length: 10 }, () =>
    fetch(`${server.baseUrl}/events`, {
      method: 'POST',
      signal: abort.signal,
      headers: { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({ kind: 'push', account: app.account.id, body: pushBody(`${run}-gone`) }),
    }).catch(() => undefined),
  );
  const stay = Array.from({ length: 10 }, (_, index) =>
    publisher('POST', '/events', {
      json: { kind: 'push', account: app.account.id, body: pushBody(`${run}-stay-${index}`) },
    }),
  );
  setTimeout(() => abort.abort(), 2);
  await Promise.all(gone);
  const answers = await Promise.all(stay);
  assert.ok(answers.every(({ status }) => status === 202));
  assert.equal((await storedIds(`${run}-stay`)).length, 10);
});

test('a killed backend loses no acknowledged event and acknowledges no lost one', async () => {
  const app = await createApp(server);
  const run = randomUUID();
  let isOver = false;
  const acknowledged = new Set<string>();
  const publish = async (worker: number) => {
    for (let count = 0; count < 40 || killed === 0; count += 1) {
      const mark = `${run}-${worker}-${count}`;
      const json = { kind: 'push', account: app.account.id, body: pushBody(mark) };
      const { status } = await publisher('POST', '/events', { json });
      if (status === 202) acknowledged.add(mark);
      else assert.equal(status, 503);
    }
  };
  let killed = 0;
  const kill = async () => {
    while (!isOver) {
      const { rows } = await sql`
        select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and query like '%insert into events%'
          and state <> 'idle'`.execute(server.db);
      killed += rows.length;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  };
  const killing = kill();
  await Promise.all(Array.from({ length: 10 }, (_, worker) => publish(worker)));
  isOver = true;
  await killing;
  const { rows } = await sql<{ mark: string }>`
    select substring(body from 'refs/heads/([^"]+)') as mark from events where body like ${`%${run}%`}`.execute(
    server.db,
  );
  const stored = new Set(rows.map(({ mark }) => mark));
  assert.deepEqual(
    [...acknowledged].filter((mark) => !stored.has(mark)),
    [],
  );
  assert.equal(rows.length, stored.size, 'no event is stored twice');
});

test('each request of a batch learns that the database went away', async (t) => {
  const database = await createDatabase();
  const proxy = await startDatabaseProxy(database.url);
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  const config = loadConfig(
    { PORT: String(await freePort()), LOG_LEVEL: 'silent', NUNCIO_RATE_LIMIT: '0' },
    'dev',
  );
  const running = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: proxy.url,
    secret: testSecret,
    logger: pino({ level: 'silent' }),
  });
  t.after(async () => {
    proxy.mend();
    await running.close();
    await db.destroy();
    await proxy.close();
    await database.drop();
  });
  const away = { baseUrl: config.baseUrl, config, db, databaseUrl: database.url, running };
  const send = await createPublisher(away);
  const app = await createApp(away);
  const json = { kind: 'push', account: app.account.id, body: pushBody() };
  assert.equal((await send('POST', '/events', { json })).status, 202);
  proxy.cut();
  const answers = await Promise.all(Array.from({ length: 10 }, () => send('POST', '/events', { json })));
  for (const { status, body } of answers) {
    assert.equal(status, 503);
    assert.equal(body.code, 'database-unavailable');
  }
  proxy.mend();
  await until(
    () => send('POST', '/events', { json }),
    ({ status }) => status === 202,
  );
});

test('an event that the database refuses fails alone', async (t) => {
  const app = await createApp(server);
  const run = randomUUID();
  await sql`
    create function refuse_poison() returns trigger language plpgsql as $$
    begin
      if new.body like '%poison%' then raise check_violation using message = 'poison'; end if;
      return new;
    end $$`.execute(server.db);
  await sql`create trigger refuse_poison before insert on events for each row execute function refuse_poison()`.execute(
    server.db,
  );
  t.after(async () => {
    await sql`drop function refuse_poison() cascade`.execute(server.db);
  });
  const send = (mark: string) =>
    publisher('POST', '/events', {
      json: { kind: 'push', account: app.account.id, body: pushBody(`${run}-${mark}`) },
    });
  const answers = await Promise.all(
    Array.from({ length: 30 }, (_, index) => send(index === 11 ? 'poison' : `good-${index}`)),
  );
  assert.deepEqual(
    answers.map(({ status }) => status),
    answers.map((_answer, index) => (index === 11 ? 500 : 202)),
  );
  assert.equal((await storedIds(run)).length, 29);
});

/** An event as the route passes it on. */
function singleOf(accountId: string, id: string, mark: string): SingleEvent {
  const body = Buffer.from(JSON.stringify(pushBody(mark)));
  return {
    event: { id, accountId, kind: 'push', body, version: null, traceparent: null },
    isChosen: false,
    keyed: undefined,
    pointer: '',
    response: { status: 202, headers: {}, body: null },
  };
}

test('a single event on an idle server is one statement without a timer', async (t) => {
  const app = await createApp(server);
  let statements = 0;
  const counting = server.db.withPlugin({
    transformQuery({ node }) {
      statements += 1;
      return node;
    },
    transformResult: async ({ result }) => result,
  });
  const stored: StoredEvent[] = [];
  const store = batchSingles(counting, (events) => stored.push(...events));
  t.mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  await store('client', singleOf(app.account.id, randomUUID(), 'alone'));
  assert.equal(statements, 1);
  assert.equal(stored.length, 1);
});

test('one client’s flood does not starve another’s request', async () => {
  const app = await createApp(server);
  const run = randomUUID();
  const store = batchSingles(server.db, () => {});
  const single = (name: string) => singleOf(app.account.id, `${run}-${name}`, run);
  const flood = Array.from({ length: 1_500 }, (_, index) => store('flood', single(`flood-${index}`)));
  const other = store('other', single('other'));
  await Promise.all([...flood, other]);
  const place = (await storedIds(run)).indexOf(`${run}-other`);
  assert.ok(place >= 0 && place < 256, `it was stored as number ${place}`);
  // Events beyond a client's limit are refused, and the other client's event is still accepted.
  const more = Promise.allSettled(
    Array.from({ length: 2_100 }, (_, index) => store('flood', single(`more-${index}`))),
  );
  assert.equal((await store('other', single('another'))).status, 202);
  const refused = (await more).filter(({ status }) => status === 'rejected');
  assert.ok(refused.length > 0 && refused.length <= 100, `${refused.length} were refused`);
});
