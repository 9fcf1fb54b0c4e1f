/** The registration API: shapes, refusals, and no access to the subscriptions of others. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import shipped from '../../../nuncio.config.ts';
import { loadConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { createPlatform, loadPlatform } from '../../../src/platform.ts';
import { startServer } from '../../../src/server.ts';
import { createDatabase } from '../../support/database/database.ts';
import { freePort, startTestServer, testSecret } from '../../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const url = 'https://example.com/hooks';

test('a subscription is created with its defaults, secret and Location', async () => {
  const app = await createApp(server);
  const { status, body, headers } = await app.request('POST', '/subscriptions', {
    json: { url, kinds: ['push'] },
  });
  assert.equal(status, 201);
  assert.equal(headers.get('location'), `/subscriptions/${body.id}`);
  assert.match(body.secret, /^whsec_/);
  const { secret, created_at, updated_at, _links, ...rest } = body;
  assert.deepEqual(rest, {
    id: body.id,
    url,
    kinds: ['push'],
    signature: 'timestamp',
    format: 'json',
    version: null,
    ordered: false,
    rate_limit: null,
    retry_schedule: null,
    filter: null,
    description: '',
    headers: {},
    auth: null,
    handshake: false,
    state: 'active',
    failing_since: null,
    disables_at: null,
    acknowledged: null,
    agent: null,
    owner: 'grant',
    grant: app.grantId,
    client: app.clientId,
  });
  const read = await app.request('GET', `/subscriptions/${body.id}`);
  assert.equal(read.status, 200);
  assert.equal(read.body.secret, undefined);
  const shown = await app.request('GET', `/subscriptions/${body.id}/secret`);
  assert.equal(shown.body.secret, secret);
});

test('a subscription is changed by a merge patch and deleted', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url, description: 'first' });
  const patch = (json: unknown) => app.request('PATCH', `/subscriptions/${id}`, { json });
  const changed = await patch({ kinds: ['article.*'], ordered: true, rate_limit: 5, description: null });
  assert.equal(changed.status, 200);
  assert.deepEqual(changed.body.kinds, ['article.*']);
  assert.equal(changed.body.ordered, true);
  assert.equal(changed.body.rate_limit, 5);
  assert.equal(changed.body.description, '');
  assert.equal((await patch({ url: null })).status, 422);
  assert.equal((await patch({ secret: 'x' })).status, 422);
  assert.equal((await patch({ state: 'ended' })).status, 422);
  assert.equal((await app.request('DELETE', `/subscriptions/${id}`)).status, 204);
  assert.equal((await app.request('GET', `/subscriptions/${id}`)).status, 404);
  assert.equal((await app.request('DELETE', `/subscriptions/${id}`)).status, 404);
});

test('webhooks 14: unknown kinds and wildcards within a word are refused', async () => {
  const app = await createApp(server);
  const tryKinds = (kinds: unknown) => app.request('POST', '/subscriptions', { json: { url, kinds } });
  for (const kinds of [
    ['nothing'],
    ['art*'],
    ['article.cre*'],
    ['*.created'],
    ['article.**'],
    ['push.*'],
    [''],
    [7],
  ]) {
    const { status, body } = await tryKinds(kinds);
    assert.equal(status, 422, JSON.stringify(kinds));
    assert.equal(body.errors[0].pointer, '/kinds/0');
    assert.equal(body.errors[0].code, 'unknown-kind');
  }
  assert.equal((await tryKinds([])).status, 422);
  for (const kinds of [['push'], ['article.*', 'invoice.paid'], ['*'], ['invoice.*'], ['ping']]) {
    assert.equal((await tryKinds(kinds)).status, 201, JSON.stringify(kinds));
  }
});

test('every fault of a body is reported at once by pointer', async () => {
  const app = await createApp(server);
  const json = {
    url: 'http://10.0.0.1/',
    kinds: ['x'],
    signature: 'md5',
    ordered: 1,
    rate_limit: 0,
    extra: true,
  };
  const { status, body } = await app.request('POST', '/subscriptions', { json });
  assert.equal(status, 422);
  assert.deepEqual(body.errors.map(({ pointer }: { pointer: string }) => pointer).sort(), [
    '/extra',
    '/kinds/0',
    '/ordered',
    '/rate_limit',
    '/signature',
    '/url',
  ]);
});

test('webhooks 77: another owner’s subscription is 404', async () => {
  const [ada, bob] = [await createApp(server), await createApp(server)];
  // The same user with another app, and a client acting for itself, are other owners too.
  const sameUser = await createApp(server, { account: ada.account });
  const machine = await createSubscribingClient(server);
  const { id } = await subscribe(ada, { url });
  const ping = await ada.request('POST', `/subscriptions/${id}/test`);
  assert.equal(ping.status, 202);
  for (const other of [bob, sameUser, machine]) {
    const calls: [string, string, unknown?][] = [
      ['GET', `/subscriptions/${id}`],
      ['PATCH', `/subscriptions/${id}`, { description: 'mine now' }],
      ['DELETE', `/subscriptions/${id}`],
      ['GET', `/subscriptions/${id}/secret`],
      ['POST', `/subscriptions/${id}/rotate-secret`, {}],
      ['POST', `/subscriptions/${id}/test`],
      ['GET', `/subscriptions/${id}/deliveries`],
      ['GET', `/deliveries/${ping.body.delivery}`],
      ['POST', `/deliveries/${ping.body.delivery}/resend`],
    ];
    for (const [method, path, json] of calls) {
      const { status } = await other.request(method, path, json === undefined ? {} : { json });
      assert.equal(status, 404, `${method} ${path}`);
    }
    const { body } = await other.request('GET', '/subscriptions');
    assert.deepEqual(body.items, []);
  }
  for (const strange of ['x', '%00', id.toUpperCase(), '../account', "'"]) {
    assert.equal((await ada.request('GET', `/subscriptions/${encodeURIComponent(strange)}`)).status, 404);
    assert.equal((await ada.request('GET', `/deliveries/${encodeURIComponent(strange)}`)).status, 404);
  }
  // A forged tag: of another lane, or of a lane that does not exist.
  const forged = ping.body.delivery.replace(/-8(...)-/, '-8fff-');
  assert.equal((await ada.request('GET', `/deliveries/${forged}`)).status, 404);
});

test('reading requires read:webhooks, and everything else write:webhooks', async () => {
  const reader = await createApp(server, { scopes: ['read:webhooks', 'read:posts'] });
  const writer = await createApp(server, { scopes: ['write:webhooks', 'read:posts'] });
  assert.equal((await reader.request('GET', '/subscriptions')).status, 200);
  assert.equal((await reader.request('POST', '/subscriptions', { json: { url, kinds: ['*'] } })).status, 403);
  const { id } = await subscribe(writer, { url });
  assert.equal((await writer.request('GET', `/subscriptions/${id}`)).status, 403);
  assert.equal((await writer.request('GET', `/subscriptions/${id}/secret`)).status, 200);
});

test('a client subscribes for itself with appSubscriptions off only when the operator allows it', async (t) => {
  const platform = createPlatform({ ...shipped, webhooks: { appSubscriptions: 'off' } });
  const own = await startTestServer(t, {}, 'dev', platform);
  const { request } = await createSubscribingClient(own);
  const { body } = await request('POST', '/subscriptions', { json: { url, kinds: ['push'] } });
  assert.equal(body.grant, null);
  await sql`update clients set may_subscribe = false`.execute(own.db);
  const refused = await request('POST', '/subscriptions', { json: { url, kinds: ['push'] } });
  assert.equal(refused.status, 403);
});

test('webhooks 78: secrets are sealed at rest and in no list', async () => {
  const app = await createApp(server);
  const { id, secret } = await subscribe(app, { url });
  const { rows } = await sql<{ dump: string }>`
    select subscriptions::text || encode(secret, 'escape') as dump from subscriptions where id = ${id}`.execute(
    server.db,
  );
  const bytes = Buffer.from(secret.slice(6), 'base64');
  assert.ok(!rows[0]?.dump.includes(secret));
  assert.ok(!rows[0]?.dump.includes(bytes.toString('hex')));
  const { text } = await app.request('GET', '/subscriptions');
  assert.ok(text.includes(id));
  assert.ok(!text.includes('whsec_'));
});

test('the list is paged by an opaque cursor', async () => {
  const app = await createApp(server);
  const ids: string[] = [];
  for (let count = 0; count < 5; count++) ids.push((await subscribe(app, { url })).id);
  const seen: string[] = [];
  let path: string | undefined = '/subscriptions?limit=2';
  while (path !== undefined) {
    const { body, status } = await app.request('GET', path);
    assert.equal(status, 200);
    seen.push(...body.items.map((item: { id: string }) => item.id));
    path = body._links.next?.href;
  }
  assert.deepEqual(seen, ids);
  for (const query of ['limit=0', 'limit=201', 'limit=x', 'after=x', 'other=1', 'limit=1&limit=2']) {
    assert.equal((await app.request('GET', `/subscriptions?${query}`)).status, 400, query);
  }
});

test('webhooks 74: a ping is signed and logged like any delivery', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['article.created'] });
  const { body } = await app.request('POST', `/subscriptions/${id}/test`);
  const [received] = await subscriber.waitFor(1);
  assert.equal(received?.headers['nuncio-event'], 'ping');
  assert.equal(received?.headers['nuncio-delivery'], body.delivery);
  assert.match(received?.headers['nuncio-signature'] as string, /^t=\d+,v1=[0-9a-f]{64}$/);
  const delivery = await until(
    () => app.request('GET', `/deliveries/${body.delivery}`),
    (answer) => answer.body.state === 'succeeded',
  );
  assert.equal(delivery.body.kind, 'ping');
  assert.deepEqual(delivery.body.body, JSON.parse(received?.body as string));
});

test('webhooks 74: failing pings do not count as failing deliveries', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [1] });
  // A host that has accepted nothing gets fewer and fewer attempts, so one ping succeeds first.
  await app.request('POST', `/subscriptions/${id}/test`);
  await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries?status=succeeded`),
    (page) => page.body.items.length === 1,
  );
  subscriber.behave(answer(500));
  const failing = async () =>
    (
      await sql<{ failures: number; failing_since: Date | null }>`
        select p.failures, p.failing_since from lane_progress p join subscriptions s on s.lane = p.lane
        where s.id = ${id}`.execute(server.db)
    ).rows[0];
  for (let count = 0; count < 12; count++) await app.request('POST', `/subscriptions/${id}/test`);
  await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries?status=failed`),
    (page) => page.body.items.length === 12,
  );
  assert.deepEqual(await failing(), { failures: 0, failing_since: null });
  // A successful ping does not clear failures either.
  await publish(await createPublisher(server), app.account, ['fails']);
  await until(failing, (lane) => (lane?.failures ?? 0) >= 1);
  subscriber.behave((received, response) => {
    response.writeHead(received.headers['nuncio-event'] === 'ping' ? 204 : 500).end();
  });
  const { body } = await app.request('POST', `/subscriptions/${id}/test`);
  await until(
    () => app.request('GET', `/deliveries/${body.delivery}`),
    (one) => one.body.state === 'succeeded',
  );
  assert.ok(((await failing())?.failures ?? 0) >= 1);
});

test('webhooks 56: a subscription’s own schedule has 1 to 20 pauses of a second to seven days', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const ask = async (schedule: unknown) => {
    const json = { url: 'https://example.com/', kinds: ['push'], retry_schedule: schedule };
    const { status, body } = await app.request('POST', '/subscriptions', { json });
    return status === 422 ? body.errors[0].pointer : status;
  };
  for (const schedule of [[1], [604_800], Array(20).fill(60), null]) assert.equal(await ask(schedule), 201);
  for (const schedule of [[], [0], [604_801], Array(21).fill(60), [1.5], ['5s'], 5])
    assert.equal(await ask(schedule), '/retry_schedule', JSON.stringify(schedule));
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [1, 2] });
  await publish(await createPublisher(server), app.account, ['fails']);
  const { body } = await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries?status=failed`),
    (page) => page.body.items.length === 1,
  );
  const { body: delivery } = await app.request('GET', `/deliveries/${body.items[0].id}`);
  const [first, second, third, ...others] = delivery.attempts.map(
    ({ at, duration_ms }: { at: string; duration_ms: number }) => ({
      begun: Date.parse(at),
      ended: Date.parse(at) + duration_ms,
    }),
  );
  assert.deepEqual(others, []);
  assert.ok(second.begun - first.ended >= 990, 'the first pause');
  assert.ok(third.begun - second.ended >= 1_990, 'the second pause');
});

test('webhooks 78: no secret appears in a log line, whatever happens', async (t) => {
  const lines: string[] = [];
  const database = await createDatabase();
  const own = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  const config = loadConfig({ PORT: String(await freePort()), NUNCIO_RATE_LIMIT: '0' }, 'dev');
  const other = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: database.url,
    secret: testSecret,
    logger: pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) }),
  });
  try {
    const subscriber = await startSubscriber(t, answer(500));
    const logged = { ...server, db: own, config, baseUrl: config.baseUrl };
    const app = await createApp(logged);
    const secrets: string[] = [];
    const given = `whsec_${Buffer.alloc(32, 9).toString('base64')}`;
    for (const secret of [undefined, given]) {
      const made = await subscribe(app, { url: subscriber.url, ...(secret === undefined ? {} : { secret }) });
      const path = `/subscriptions/${made.id}`;
      const { body } = await app.request('POST', `${path}/rotate-secret`, { json: {} });
      await app.request('GET', `${path}/secret`);
      await app.request('PATCH', path, { json: { secret: given } });
      secrets.push(made.secret, body.secret);
    }
    await app.request('POST', '/subscriptions', {
      json: { url: 'https://u:p@h/', secret: 'whsec_x', kinds: [] },
    });
    await publish(await createPublisher(logged), app.account, ['x']);
    await subscriber.waitFor(4);
    secrets.push(
      ...subscriber.received.map(
        ({ headers }) => String(headers['nuncio-signature']).split('v1=')[1] as string,
      ),
    );
    assert.ok(lines.length > 10);
    for (const secret of secrets) assert.ok(!lines.some((line) => line.includes(secret.slice(0, 40))));
    assert.ok(!lines.some((line) => line.includes('whsec_')));
  } finally {
    await other.close();
    await own.destroy();
    await database.drop();
  }
});

test('a client’s subscription gets its grantors’ events within each grant’s scopes', async (t) => {
  const subscriber = await startSubscriber(t);
  const publisher = await createPublisher(server);
  const { client, request } = await createSubscribingClient(server);
  await subscribe({ request }, { url: subscriber.url });
  const stranger = await createApp(server);
  const { createTestAccount, mintAccessToken } = await import('../../support/clients/oauth.ts');
  const reading = await createTestAccount(server);
  const other = await createTestAccount(server);
  await mintAccessToken(server, { account: reading, client, scopes: ['read:posts'] });
  await mintAccessToken(server, { account: other, client, scopes: ['read:profile'] });
  await publish(publisher, stranger.account, ['stranger']);
  await publish(publisher, other, ['other']);
  await publish(publisher, reading, ['reading']);
  const [received] = await subscriber.waitFor(1);
  assert.equal(JSON.parse(received?.body as string).ref, 'refs/heads/reading');
  assert.equal(received?.headers['nuncio-sequence'], '1');
});
