/** No response with a secret may be stored by a cache: each route whose response schema has one says `no-store`. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { newId } from '../../src/crypto/ids.ts';
import { loadPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { type ApiResponse, requester } from '../support/clients/api_client.ts';
import { authorizationUrl, clientToken, createPkce, createTestClient } from '../support/clients/oauth.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';

const platform = await loadPlatform(null);
const oauth = { ...platform.oauth, registration: 'open' as const };
const login = { url: 'https://app.example.com/login', acrValues: [], administrators: false };
const server = await startTestServer({ after }, {}, 'dev', {
  ...platform,
  oauth,
  accounts: { ...platform.accounts, login },
});
const user = await createConsoleUser(server);
const scopes = ['read:accounts', 'write:accounts', 'write:logins'];
const client = await createTestClient(server, { scopes });
const machine = requester(server, await clientToken(server, client, scopes));
const open = requester(server);

const minimal = { client_name: 'Reader', redirect_uris: ['https://reader.example/cb'], scope: 'read:posts' };
const { body: app } = await user.request('POST', '/apps', { json: minimal });
const hook = { url: 'https://hooks.example.com/', kinds: ['*'] };
const { body: subscription } = await user.request('POST', '/subscriptions', { json: hook });
const externalId = newId();
await machine('PUT', `/accounts/external/${externalId}`, { json: { name: 'Ann' } });

async function loginRequest(): Promise<string> {
  const reader = await createTestClient(server, { scopes: ['read:posts'] });
  const challenge = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const page = await new TestBrowser(server.baseUrl).open(authorizationUrl(server, reader, challenge));
  return page.leftTo?.searchParams.get('login_request') as string;
}

const accept = { account: { external_id: externalId } };
const idempotent = { 'idempotency-key': newId() };
const requests: Record<string, () => Promise<ApiResponse>> = {
  'post /subscriptions': () => user.request('POST', '/subscriptions', { json: hook, headers: idempotent }),
  'get /subscriptions/{id}/secret': () => user.request('GET', `/subscriptions/${subscription.id}/secret`),
  'post /subscriptions/{id}/rotate-secret': () =>
    user.request('POST', `/subscriptions/${subscription.id}/rotate-secret`, { json: {} }),
  'post /apps/{id}/subscriptions': () =>
    user.request('POST', `/apps/${app.client_id}/subscriptions`, { json: hook }),
  'post /apps': () => user.request('POST', '/apps', { json: minimal }),
  'post /apps/{id}/secrets': () => user.request('POST', `/apps/${app.client_id}/secrets`),
  'post /account-links': () => machine('POST', '/account-links', { json: accept }),
  'post /login-requests/{id}/accept': async () =>
    machine('POST', `/login-requests/${await loginRequest()}/accept`, { json: accept }),
  'post /login-requests/{id}/reject': async () =>
    machine('POST', `/login-requests/${await loginRequest()}/reject`, { json: { error: 'access_denied' } }),
};

/** A property whose value lets its holder do something. `url` only where it is an account link. */
const secretNames = /^(?!is_)(?:.*secret|.*token|.*password|redirect_to|.*_code|url)$/;

// biome-ignore lint/suspicious/noExplicitAny: the schemas of the reference
function propertiesOf(api: any, schema: any, seen = new Set<unknown>()): string[] {
  if (typeof schema !== 'object' || schema === null || seen.has(schema)) return [];
  seen.add(schema);
  if (typeof schema.$ref === 'string') {
    const target = schema.$ref
      .split('/')
      .slice(1)
      .reduce((at: typeof api, name: string) => at[name], api);
    return propertiesOf(api, target, seen);
  }
  return Object.entries(schema).flatMap(([name, value]) => [
    ...(name === 'properties' ? Object.keys(value as object) : []),
    ...propertiesOf(api, value, seen),
  ]);
}

test('every route whose response schema has a secret responds no-store, also to a repeated request', async () => {
  const { body: api } = await open('GET', '/openapi.json');
  const found: string[] = [];
  // biome-ignore lint/suspicious/noExplicitAny: the operations of the reference
  for (const [path, item] of Object.entries<any>(api.paths)) {
    for (const [method, { responses }] of Object.entries<typeof item>(item)) {
      const good = Object.entries(responses).filter(([status]) => status.startsWith('2'));
      const names = good.flatMap(([, response]) => propertiesOf(api, response));
      const isLink = path === '/account-links';
      if (names.some((name) => secretNames.test(name) && (name !== 'url' || isLink)))
        found.push(`${method} ${path}`);
    }
  }
  assert.deepEqual(found.toSorted(), Object.keys(requests).toSorted());
  for (const name of [...found, 'post /subscriptions']) {
    const { status, headers, text } = await (requests[name] as () => Promise<ApiResponse>)();
    assert.ok(status === 200 || status === 201, `${name}: ${status} ${text}`);
    assert.equal(headers.get('cache-control'), 'no-store', name);
  }
});

test('registration tokens, device codes and access tokens are never stored', async () => {
  const registered = await open('POST', '/oauth/register', { json: minimal });
  assert.equal(registered.status, 201, registered.text);
  const { client_id: id, registration_access_token: token, client_secret: secret } = registered.body;
  const authorization = `Basic ${Buffer.from(`${id}:${secret}`).toString('base64')}`;
  const form = { 'content-type': 'application/x-www-form-urlencoded', authorization };
  const own = `/oauth/register/${id}`;
  const { id: deviceClient } = await createTestClient(server, {
    grantTypes: ['urn:ietf:params:oauth:grant-type:device_code'],
    authMethod: 'none',
    scopes: ['read:posts'],
  });
  const clientForm = { 'content-type': form['content-type'] };
  const answers = [
    registered,
    await requester(server, token)('GET', own),
    await open('POST', '/oauth/device', {
      raw: `client_id=${deviceClient}&scope=read:posts`,
      headers: clientForm,
    }),
    await open('POST', '/oauth/token', {
      raw: 'grant_type=client_credentials',
      headers: {
        ...clientForm,
        authorization: `Basic ${Buffer.from(`${client.id}:${client.secret}`).toString('base64')}`,
      },
    }),
  ];
  for (const { status, headers, text } of answers) {
    assert.ok(status < 300, text);
    assert.match(headers.get('cache-control') ?? '', /no-store/);
  }
});
