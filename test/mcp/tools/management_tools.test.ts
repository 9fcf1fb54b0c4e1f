/** The tools that manage apps, subscriptions and deliveries: what is listed, that they do what the API does, and no more. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import { sql } from 'kysely';
import shipped from '../../../nuncio.config.ts';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { defineCollection, Type } from '../../../src/index.ts';
import { createPlatform } from '../../../src/platform.ts';
import { TestBrowser } from '../../support/browser/browser.ts';
import { requester } from '../../support/clients/api_client.ts';
import { callMcp, callTool, mcpToken, postMcp } from '../../support/clients/mcp_client.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
} from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { addPaused, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const platform = createPlatform({ ...shipped, mcp: { enabled: true, management: true } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const account = await createTestAccount(server);
const other = await createTestAccount(server);
const management = ['read:apps', 'write:apps', 'read:webhooks', 'write:webhooks'];
const client = await createTestClient(server, { scopes: [...management, 'read:posts', 'read:profile'] });
const scopes = [...management, 'read:posts'];
const { accessToken: token, grantId } = await mcpToken(server, { account, client, scopes });
const stranger = await mcpToken(server, { account: other, client, scopes });
/** The same grant at the API. */
const { accessToken } = await mintAccessToken(server, {
  account,
  client,
  scopes,
  grantId: grantId as string,
});
const api = requester(server, accessToken);

interface Listed {
  name: string;
  inputSchema: { properties: Record<string, object>; required: string[] };
  outputSchema: object;
  annotations: { readOnlyHint: boolean; destructiveHint: boolean; openWorldHint: boolean };
}

async function listed(of = token): Promise<Map<string, Listed>> {
  const { tools } = (await callMcp(server, of, 'tools/list')).body.result as { tools: Listed[] };
  return new Map(tools.map((tool) => [tool.name, tool]));
}

const tools = await listed();
const ajv = new Ajv({ strict: false });
addFormats.default(ajv);

/** Calls a tool, whose result must fit its schema and hold no secret. */
async function call(name: string, given: Record<string, unknown> = {}, of = token) {
  const result = await callTool(server, of, name, given);
  if (result.isError) return { error: result.content[0].text as string };
  const validate = ajv.compile(tools.get(name)?.outputSchema ?? false);
  assert.ok(validate(result.structuredContent), `${name}: ${ajv.errorsText(validate.errors)}`);
  assert.doesNotMatch(JSON.stringify(result), /"(?:client_)?secret"|whsec_|_links/);
  return { value: result.structuredContent };
}

const readers = [
  ...['apps_list', 'app_get', 'subscriptions_list', 'subscription_get', 'subscription_deliveries_list'],
  ...['subscription_health_get', 'delivery_get', 'health_get'],
];
const writers = [
  ...['app_create', 'app_update', 'app_delete', 'subscription_update', 'subscription_delete'],
  ...['subscription_test', 'delivery_resend'],
];

test('management tools exist only where the operator switches them on', async (context) => {
  for (const name of [...readers, ...writers]) assert.ok(tools.has(name), name);
  const off = createPlatform({ ...shipped, mcp: { enabled: true } });
  const usual = await startTestServer(context, {}, 'dev', off);
  const user = await createTestAccount(usual);
  const app = await createTestClient(usual, { scopes });
  const { accessToken: given } = await mcpToken(usual, { account: user, client: app, scopes });
  const { body } = await callMcp(usual, given, 'tools/list');
  const names = body.result.tools.map(({ name }: Listed) => name) as string[];
  assert.deepEqual(
    [...readers, ...writers].filter((name) => names.includes(name)),
    [],
  );
});

test('reading and writing are apart, by scope and by hint', async () => {
  const ofReader = await mcpToken(server, { account, client, scopes: ['read:apps', 'read:webhooks'] });
  assert.deepEqual([...(await listed(ofReader.accessToken)).keys()].toSorted(), readers.toSorted());
  for (const name of readers) assert.equal(tools.get(name)?.annotations.readOnlyHint, true, name);
  for (const name of writers) {
    assert.equal(tools.get(name)?.annotations.readOnlyHint, false, name);
    const params = { name, arguments: {} };
    assert.equal((await callMcp(server, ofReader.accessToken, 'tools/call', params)).status, 403, name);
  }
  const destructive = writers.filter((name) => tools.get(name)?.annotations.destructiveHint);
  assert.deepEqual(destructive, ['app_update', 'app_delete', 'subscription_update', 'subscription_delete']);
});

test('no argument is a secret or a credential', () => {
  for (const name of [...readers, ...writers]) {
    const names = Object.keys(tools.get(name)?.inputSchema.properties ?? {});
    const secret = names.filter((each) => /secret|auth$|headers|password/.test(each));
    assert.deepEqual(secret, [], name);
  }
});

test('an app is created, changed and deleted as in the API, by the same user', async () => {
  const redirect = 'https://agent.example/cb';
  const made = await call('app_create', { client_name: 'Made by an agent', redirect_uris: [redirect] });
  const id = made.value.client_id as string;
  const { body } = await api('GET', `/apps/${id}`);
  assert.deepEqual(
    [body.client_name, body.role, made.value.client_name],
    ['Made by an agent', 'owner', body.client_name],
  );
  const changed = await call('app_update', { id, client_name: 'Changed' });
  assert.equal(changed.value.client_name, 'Changed');
  assert.equal((await call('app_get', { id })).value.client_name, 'Changed');
  const { items, next } = (await call('apps_list', { limit: 1 })).value;
  assert.deepEqual([items.length, items[0].client_id, next], [1, id, null]);
  assert.deepEqual((await call('app_delete', { id })).value, { id, deleted: true });
  assert.equal((await api('GET', `/apps/${id}`)).status, 404);
  const { rows } = await sql<{ actor: string }>`
    select distinct actor from audit_entries where client_id = ${id}`.execute(server.db);
  assert.deepEqual(rows, [{ actor: account.id }]);
});

test('a repeated call with the same key has one effect, also across the API', async () => {
  const body = { client_name: 'Once', redirect_uris: ['https://once.example/cb'] };
  const key = crypto.randomUUID();
  const first = await call('app_create', { ...body, idempotency_key: key });
  const again = await call('app_create', { ...body, idempotency_key: key });
  const atApi = await api('POST', '/apps', { json: body, headers: { 'idempotency-key': key } });
  const ids = [first.value.client_id, again.value.client_id, atApi.body.client_id];
  assert.equal(new Set(ids).size, 1);
  await call('app_delete', { id: ids[0] });
});

test('what the API refuses is a sentence for the model', async () => {
  const { error } = await call('app_create', { client_name: 'X', redirect_uris: ['http://evil.example/cb'] });
  assert.match(error ?? '', /^The arguments are not valid: redirect_uris/);
  assert.match((await call('app_get', { id: 'nobody' })).error ?? '', /^App not found/);
  assert.match(
    (await call('subscription_get', { id: 'x' })).error ?? '',
    /^The arguments are not valid: id /,
  );
});

test('subscriptions and deliveries are read, tested, resent and ended', async () => {
  const subscriber = await startSubscriber({ after });
  const made = await subscribe({ request: api }, { url: subscriber.url, kinds: ['article.*'] });
  const { id } = made;
  const { items } = (await call('subscriptions_list')).value;
  assert.deepEqual(
    items.map((each: { id: string }) => each.id),
    [id],
  );
  assert.equal((await call('subscription_get', { id })).value.url, new URL(subscriber.url).href);
  const { delivery } = (await call('subscription_test', { id })).value;
  const read = () => call('delivery_get', { id: delivery });
  const done = await until(read, ({ value }) => value.state === 'succeeded');
  assert.equal(done.value.attempts[0].status, 204);
  const log = await call('subscription_deliveries_list', { id, status: 'succeeded', limit: 5 });
  assert.deepEqual(
    log.value.items.map((each: { id: string }) => each.id),
    [delivery],
  );
  await call('delivery_resend', { id: delivery });
  await until(read, ({ value }) => value.attempts.length === 2);
  for (const [name, given] of [
    ['subscription_health_get', { id }],
    ['health_get', {}],
  ] as const) {
    const health = await until(
      () => call(name, given),
      ({ value }) => value.totals.succeeded >= 1,
    );
    assert.equal(health.value.backlog.pending, 0);
  }
  const paused = await call('subscription_update', { id, state: 'disabled', description: 'Paused' });
  assert.deepEqual([paused.value.state, paused.value.description], ['disabled', 'Paused']);
  assert.match(
    (await call('delivery_resend', { id: delivery })).error ?? '',
    /^The subscription is disabled/,
  );
  assert.deepEqual((await call('subscription_delete', { id })).value, { id, deleted: true });
});

test('what belongs to another user is not found by any tool', async () => {
  const made = await subscribe({ request: api }, { url: null, kinds: ['article.*'] });
  const app = await call('app_create', { client_name: 'Mine', redirect_uris: ['https://mine.example/cb'] });
  const foreign: Record<string, unknown>[] = [{ id: made.id }, { id: app.value.client_id }];
  for (const name of [...readers, ...writers]) {
    if (tools.get(name)?.inputSchema.required.includes('id') !== true) continue;
    for (const given of foreign) {
      const { error } = await call(name, given, stranger.accessToken);
      assert.match(error ?? 'it succeeded', /not found|The arguments are not valid: id/i, name);
    }
  }
  assert.deepEqual((await call('apps_list', {}, stranger.accessToken)).value.items, []);
  assert.deepEqual((await call('subscriptions_list', {}, stranger.accessToken)).value.items, []);
  await call('app_delete', { id: app.value.client_id });
  await call('subscription_delete', { id: made.id });
});

test('an id cannot lead to another operation', async () => {
  for (const id of ['..', '.', '../subscriptions', '%2e%2e', '?limit=1', 'a/../..']) {
    const { error } = await call('app_get', { id });
    assert.match(error ?? 'it succeeded', /^(?:App not found|There is nothing with this id)/, id);
  }
});

test('attack: two reads of management tools are made at once, and few of an account wait', async () => {
  const waiting = async () => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like '%from app_members%'`.execute(
      server.db,
    );
    return rows[0]?.count ?? 0;
  };
  const locked = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const holding = server.db.transaction().execute(async (tx) => {
    await sql`lock table app_members in access exclusive mode`.execute(tx);
    locked.resolve();
    await ended.promise;
  });
  await locked.promise;
  // More than an account may have waiting.
  const calls = Array.from({ length: 15 }, () => callTool(server, token, 'apps_list', {}));
  const answers: boolean[] = [];
  for (const each of calls) void each.then(({ isError }) => answers.push(isError === true));
  await until(
    async () => answers.length,
    (count) => count === 3,
  );
  assert.deepEqual(answers, [true, true, true]);
  const others = Array.from({ length: 3 }, () => callTool(server, stranger.accessToken, 'apps_list', {}));
  await until(waiting, (count) => count === 2);
  ended.resolve();
  await holding;
  for (const each of await Promise.all(others)) assert.equal(each.isError, undefined);
  await Promise.all(calls);
  assert.equal(answers.filter((isError) => !isError).length, 12);
});

test('attack: tools that wait for their turn at health hold no turns of other tools', async (context) => {
  // With places, requests have users.
  const server = await startTestServer(context, { NUNCIO_CONCURRENT_REQUESTS: '64' }, 'dev', platform);
  const client = await createTestClient(server, { scopes: [...management, 'read:profile'] });
  const connect = async () => {
    const account = await createTestAccount(server);
    const { accessToken, grantId } = await mcpToken(server, { account, client, scopes: management });
    const app = { account, clientId: client.id, grantId: grantId as string, accessToken, request: api };
    await addPaused(server.db, app, 2);
    return accessToken;
  };
  const [one, other] = [await connect(), await connect()];
  const answers: boolean[] = [];
  const callHealth = async (of: string) => {
    const { isError } = await callTool(server, of, 'health_get', {});
    answers.push(isError !== true);
  };
  const asked = await server.db.transaction().execute(async (tx) => {
    await sql`lock table delivery_stats in access exclusive mode`.execute(tx);
    // One that reads, four that may wait, and one more.
    const own = Array.from({ length: 6 }, () => callHealth(one));
    await until(
      async () => answers,
      ([first]) => first === false,
    );
    const listed = await callTool(server, other, 'apps_list', {});
    assert.equal(listed.isError, undefined, JSON.stringify(listed));
    assert.deepEqual(answers, [false], 'the others wait');
    return [...own, callHealth(other)];
  });
  await Promise.all(asked);
  // Those of one user do not use up what another may have waiting.
  assert.deepEqual(answers, [false, true, true, true, true, true, true]);
});

test('attack: tools that wait for pages of the delivery log hold no turns of other tools', async (context) => {
  const server = await startTestServer(context, { NUNCIO_CONCURRENT_REQUESTS: '64' }, 'dev', platform);
  const client = await createTestClient(server, { scopes: [...management, 'read:profile'] });
  const account = await createTestAccount(server);
  const { accessToken, grantId } = await mcpToken(server, { account, client, scopes: management });
  await addPaused(
    server.db,
    { account, clientId: client.id, grantId: grantId as string, accessToken, request: api },
    1,
  );
  const { rows } = await sql<{ id: string }>`select id from subscriptions`.execute(server.db);
  let answers = 0;
  const asked = await server.db.transaction().execute(async (tx) => {
    await sql`lock table attempts in access exclusive mode`.execute(tx);
    // As many as there are turns of other tools.
    const own = Array.from({ length: 2 }, async () => {
      const { isError } = await callTool(server, accessToken, 'subscription_deliveries_list', rows[0] ?? {});
      answers += 1;
      return isError;
    });
    const listed = await callTool(server, accessToken, 'apps_list', {});
    assert.equal(listed.isError, undefined, JSON.stringify(listed));
    assert.equal(answers, 0, 'the others wait');
    return own;
  });
  assert.deepEqual(await Promise.all(asked), [undefined, undefined]);
});

test('a withdrawn grant ends its management tools', async () => {
  const mine = await mcpToken(server, { account, client, scopes });
  assert.ok((await call('apps_list', {}, mine.accessToken)).value);
  await withdrawGrant(server.db, mine.grantId as string, 'user');
  const params = { name: 'apps_list', arguments: {} };
  await until(
    () => callMcp(server, mine.accessToken, 'tools/call', params),
    ({ status }) => status === 401,
  );
});

test('no client is told to ask for the scopes of management', async () => {
  const { headers } = await postMcp(server, null, {});
  assert.doesNotMatch(headers.get('www-authenticate') ?? '', /apps|webhooks/);
  const metadata = await fetch(`${server.baseUrl}/.well-known/oauth-protected-resource/mcp`);
  assert.doesNotMatch(await metadata.text(), /:apps|:webhooks/);
});

test('the consent page warns of the scopes of management', async () => {
  const textOf = async (scope: string) => {
    const { challenge } = createPkce();
    const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
    const resource = `${server.baseUrl}/mcp`;
    const browser = new TestBrowser(server.baseUrl);
    const login = await browser.open(authorizationUrl(server, client, { scope, resource, ...pkce }));
    const { email, password } = account;
    return (await browser.submit(login, { email, password, action: 'login' })).text;
  };
  assert.match(await textOf('read:posts read:apps write:apps'), /more than most apps.*delete the apps/s);
  assert.match(await textOf('read:apps'), /more than most apps.*could see what you see in the console/s);
  assert.doesNotMatch(await textOf('read:posts read:webhooks'), /more than most apps/);
});

test('a collection whose tools have these names stops the start', () => {
  const clash = defineCollection({
    name: 'programs',
    item: 'app',
    scope: 'programs',
    fields: { label: Type.String({ maxLength: 10 }) },
    example: { label: 'One' },
  });
  const create = (on: boolean) =>
    createPlatform({ collections: [clash], mcp: { enabled: true, management: on } });
  assert.throws(() => create(true), /^PlatformError: collections\.programs: the tool app_get exists twice/m);
  create(false);
});
