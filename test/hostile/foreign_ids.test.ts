/**
 * Attack: every operation of the API that takes an id, with the ids of another account, app or grant. The operations come from the
 * table of admissions, so a new route is tried as soon as it is declared.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import type { Operation } from '../../src/http/operation.ts';
import { referenceParts } from '../../src/reference_parts.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { testPlatform, testScopes } from '../support/servers/platform.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  createPublisher,
  createSubscribingClient,
  publish,
  type Request,
  until,
} from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, {}, 'dev', testPlatform);
const subscriber = await startSubscriber({ after });
const scopes = [
  ...testScopes,
  ...['read:profile', 'read:webhooks', 'write:webhooks', 'read:apps', 'write:apps'],
];

/** Operations that take somebody's id. Kinds of events are no ids. */
const operations = referenceParts(testPlatform)
  .flatMap((part) => part.operations)
  .filter(({ path, admission }) => path.includes('{') && /token|member/.test(admission.audience))
  .filter(({ path }) => !path.includes('{kind}'));
/** Every user may read every bookmark. */
const publicOperations = new Set(['get /bookmarks/{id}']);
const nameOf = ({ method, path }: Operation) => `${method} ${path}`;

/** The ids of one owner, by path and parameter: the longest prefix counts. */
type Ids = Readonly<Record<string, string>>;

async function created(request: Request, path: string, json: unknown): Promise<string> {
  const { status, body, text } = await request('POST', path, { json });
  assert.ok(status === 201 || status === 202, `${path}: ${status} ${text}`);
  return String(body.id ?? body.client_id);
}

async function userOf(client: { id: string }, account: { id: string }): Promise<Request> {
  const { accessToken } = await mintAccessToken(server, { account, client, scopes });
  return requester(server, accessToken);
}

const publisher = await createPublisher(server);
const fields = { url: subscriber.url, kinds: ['push'] };

/** Creates something of each kind that has an id. */
async function createOwner(client: { id: string }) {
  const account = await createTestAccount(server);
  const request = await userOf(client, account);
  const article = await created(request, '/articles', { title: 'Mine', body: 'A draft.' });
  const comment = await created(request, `/articles/${article}/comments`, { body: 'Mine.' });
  const bookmark = await created(request, '/bookmarks', { label: 'Mine', address: 'https://mine.example' });
  const ticket = await created(request, '/tickets', { subject: 'Mine' });
  const note = await created(request, `/tickets/${ticket}/notes`, { text: 'Mine.' });
  const app = await created(request, '/apps', {
    client_name: 'Mine',
    redirect_uris: ['https://mine.example/callback'],
    scope: 'read:profile',
  });
  const secret = await created(request, `/apps/${app}/secrets`, {});
  const invitee = await createTestAccount(server);
  const invited = await request('PUT', `/apps/${app}/members/${encodeURIComponent(invitee.email)}`, {
    json: { role: 'developer' },
  });
  assert.equal(invited.status, 201, invited.text);
  const { rows } = await sql<{ id: string }>`
    select id from app_invitations where client_id = ${app}`.execute(server.db);
  const [invitation] = rows;
  const subscriptions = [
    await created(request, '/subscriptions', fields),
    await created(request, `/apps/${app}/subscriptions`, fields),
  ];
  await publish(publisher, account, ['mine']);
  const subscription = subscriptions[0] as string;
  const deliveries = await until(
    async () => (await request('GET', `/subscriptions/${subscription}/deliveries`)).body.items,
    (items) => items.length > 0 && items[0].state === 'succeeded',
  );
  const job = await created(request, `/subscriptions/${subscription}/recover`, {
    since: new Date(Date.now() - 60_000).toISOString(),
  });
  await until(
    async () => (await request('GET', `/subscriptions/${subscription}/recoveries/${job}`)).body.state,
    (state) => state === 'done',
  );
  const ids: Ids = {
    '/articles {id}': article,
    '/articles {parent}': article,
    '/articles/{parent}/comments {id}': comment,
    '/bookmarks {id}': bookmark,
    '/tickets {id}': ticket,
    '/tickets {parent}': ticket,
    '/tickets/{parent}/notes {id}': note,
    '/apps {id}': app,
    '/apps {secret}': secret,
    '/apps {account}': account.id,
    '/app-invitations {id}': invitation?.id ?? '',
    '/subscriptions {id}': subscription,
    '/subscriptions {job}': job,
    '/deliveries {id}': deliveries[0].id,
  };
  return { account, request, ids, subscriptions };
}

/** The path with ids. @throws AssertionError if a new kind of id is missing above */
function pathOf({ path }: Operation, idOf: (parameter: string) => string): string {
  return path.replaceAll(/\{\w+\}/g, (parameter) => encodeURIComponent(idOf(parameter)));
}

function idIn(ids: Ids, { path }: Operation, parameter: string): string {
  const fitting = Object.keys(ids)
    .filter((key) => path.startsWith(key.split(' ')[0] as string) && key.endsWith(parameter))
    .toSorted((one, other) => other.length - one.length);
  const id = ids[fitting[0] ?? ''];
  assert.ok(id, `no id for ${parameter} of ${path}: create one in this test`);
  return id;
}

function call(request: Request, operation: Operation, path: string) {
  const { method, body } = operation;
  const type = body?.types[0];
  if (type === undefined) return request(method.toUpperCase(), path);
  const raw = JSON.stringify(body?.example ?? {});
  return request(method.toUpperCase(), path, { raw, headers: { 'content-type': type } });
}

/** Digests of the tables that an operation of the API can change. */
async function stateOfTables(): Promise<Record<string, string>> {
  const { rows: tables } = await sql<{ name: string }>`
    select tablename as name from pg_tables
    where schemaname = current_schema() and tablename ~ ${'^(accounts|app_|article|bookmark|client|deliveries|events|grants|lanes$|recover|subscriptions|ticket)'}`.execute(
    server.db,
  );
  const digests: Record<string, string> = {};
  for (const { name } of tables) {
    const { rows } = await sql<{ digest: string }>`
      select md5(coalesce(string_agg(t::text, '' order by t::text), '')) as digest from ${sql.table(name)} t`.execute(
      server.db,
    );
    digests[name] = rows[0]?.digest ?? '';
  }
  return digests;
}

const shared = await createTestClient(server, { scopes });
const owner = await createOwner(shared);
const strangers: Readonly<Record<string, Request>> = {
  'another user of the same app': await userOf(shared, await createTestAccount(server)),
  'another user of another app': await userOf(
    await createTestClient(server, { scopes }),
    await createTestAccount(server),
  ),
  'an app that acts for itself': (await createSubscribingClient(server)).request,
};

async function refusesAll(
  request: Request,
  who: string,
  tried: readonly [Operation, string][],
): Promise<void> {
  const before = await stateOfTables();
  assert.ok(Object.keys(before).length > 10, Object.keys(before).join());
  for (const [operation, path] of tried) {
    const { status, text } = await call(request, operation, path);
    assert.ok(status === 404 || status === 403, `${who}: ${nameOf(operation)} ${path}: ${status} ${text}`);
  }
  assert.deepEqual(await stateOfTables(), before, who);
}

test('attack: the owner of the ids is admitted, so that the refusals below are about the ids', async () => {
  for (const operation of operations.filter(({ method }) => method === 'get')) {
    if (operation.path.startsWith('/app-invitations')) continue;
    const path = pathOf(operation, (parameter) => idIn(owner.ids, operation, parameter));
    const { status, text } = await call(owner.request, operation, path);
    assert.equal(status, 200, `${nameOf(operation)}: ${text}`);
  }
});

for (const [who, request] of Object.entries(strangers)) {
  test(`attack: ${who} reads and changes nothing by the ids of others`, async () => {
    const tried = operations
      .filter((operation) => !publicOperations.has(nameOf(operation)))
      .map((operation): [Operation, string] => [
        operation,
        pathOf(operation, (parameter) => idIn(owner.ids, operation, parameter)),
      ]);
    assert.ok(tried.length > 45, String(tried.length));
    await refusesAll(request, who, tried);
  });

  test(`attack: ${who} reaches no subscription of another app by its id`, async () => {
    const ofSubscription = operations.filter(({ path }) => path.startsWith('/subscriptions/{id}'));
    for (const id of owner.subscriptions) {
      await refusesAll(
        request,
        who,
        ofSubscription.map((operation) => [
          operation,
          pathOf(operation, (parameter) =>
            parameter === '{id}' ? id : idIn(owner.ids, operation, parameter),
          ),
        ]),
      );
    }
  });
}

test('attack: another app of the same user reaches no subscription or delivery of the first one', async () => {
  const request = await userOf(await createTestClient(server, { scopes }), owner.account);
  const tried = operations
    .filter(({ path }) => path.startsWith('/subscriptions/') || path.startsWith('/deliveries/'))
    .map((operation): [Operation, string] => [
      operation,
      pathOf(operation, (parameter) => idIn(owner.ids, operation, parameter)),
    ]);
  await refusesAll(request, 'another app', tried);
});

test('attack: the ids of others below one’s own id lead nowhere', async () => {
  const other = await createOwner(shared);
  const nested = operations.filter(({ path }) => (path.match(/\{/g) ?? []).length > 1);
  const tried = nested
    .filter((operation) => nameOf(operation) !== 'put /apps/{id}/members/{account}')
    .map((operation): [Operation, string] => {
      let depth = 0;
      return [
        operation,
        pathOf(operation, (parameter) => {
          depth += 1;
          return idIn(depth === 1 ? other.ids : owner.ids, operation, parameter);
        }),
      ];
    });
  assert.ok(tried.length >= 6, String(tried.length));
  await refusesAll(other.request, 'below an own id', tried);
});
