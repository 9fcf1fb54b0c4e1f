/** Codes that an upstream OpenID provider refuses are limited for each network, because the provider limits the requests of this server. */

import assert from 'node:assert/strict';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { after, beforeEach, test } from 'node:test';
import { newId } from '../../src/crypto/ids.ts';
import { type Page, TestBrowser } from '../support/browser/browser.ts';
import { createTestClient } from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startFakeProvider } from '../support/upstream/fake_provider.ts';
import {
  callbackOf,
  declare,
  openLoginPage,
  pressButton,
  startServerWithProviders,
} from '../support/upstream/upstream_sign_in.ts';

const [one, two] = [await startFakeProvider({ after }), await startFakeProvider({ after })];
const server = await startServerWithProviders(
  { after },
  [declare('one', one, { name: 'Example ID' }), declare('two', two)],
  'open',
  { NUNCIO_TRUST_PROXY: '127.0.0.1' },
);
const connectionOf = await createTraceReader(server);
const app = await createTestClient(server, { name: 'Reader' });

/** The nonce of each code that the providers accept. They refuse all others. */
const nonces = new Map<string, string>();
/** What a provider answers about a code that it does not know. */
let refusal: { status: number; error: string | null } = { status: 400, error: 'invalid_grant' };

for (const provider of [one, two]) {
  provider.overrides.set('/token', async (request: IncomingMessage, response: ServerResponse) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const send = (status: number, sent: unknown) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(sent));
    const code = new URLSearchParams(body).get('code') ?? '';
    const nonce = nonces.get(code);
    if (nonce === undefined && refusal.error === null)
      return response.writeHead(refusal.status, { 'content-type': 'text/html' }).end('<p>No.</p>');
    if (nonce === undefined) return send(refusal.status, { error: refusal.error });
    send(200, {
      access_token: 'at',
      token_type: 'Bearer',
      id_token: await provider.sign({ nonce, sub: code }),
    });
  });
}
beforeEach(() => {
  refusal = { status: 400, error: 'invalid_grant' };
});

const asked = (provider = one) => provider.requests.get('/token') ?? 0;

interface Begun {
  browser: TestBrowser;
  authorize: URL;
  id: 'one' | 'two';
}

async function begin(id: 'one' | 'two' = 'one'): Promise<Begun> {
  const browser = new TestBrowser(server.baseUrl);
  const { leftTo } = await pressButton(browser, await openLoginPage(server, browser, app), id);
  return { browser, authorize: leftTo as URL, id };
}

/** Comes back from the provider with a code that it accepts, or with another one. */
function comeBack({ browser, authorize, id }: Begun, network: string, isValid: boolean): Promise<Response> {
  const code = newId();
  if (isValid) nonces.set(code, authorize.searchParams.get('nonce') ?? '');
  const { issuer } = id === 'one' ? one : two;
  return browser.request(callbackOf(authorize, { iss: issuer, code }), {
    headers: { 'x-forwarded-for': network },
  });
}

const signIn = async (network: string, isValid = true, id: 'one' | 'two' = 'one') =>
  (await comeBack(await begin(id), network, isValid)).status;

async function useUp(network: string, count = 20): Promise<void> {
  for (let index = 0; index < count; index += 1) assert.equal(await signIn(network, false), 400);
}

test('attack: a network whose codes a provider refuses gets twenty requests to it in fifteen minutes', async () => {
  const before = asked();
  await useUp('192.0.2.1');
  assert.equal(asked(), before + 20);
  const begun = await begin();
  const response = await comeBack(begun, '192.0.2.1', false);
  const text = await response.text();
  assert.equal(response.status, 429);
  assert.match(response.headers.get('retry-after') ?? '', /^\d+$/);
  assert.ok(Number(response.headers.get('retry-after')) <= 900);
  assert.match(text, /<h1>Too many attempts<\/h1>/);
  assert.match(text, /Try again in 1\d minutes, or sign in another way\./);
  const back = /href="(\/interaction\/[^"]+)"/.exec(text)?.[1];
  const login: Page = await begun.browser.open(`${server.baseUrl}${back}`);
  assert.match(login.text, /Continue with Example ID/);
  // Valid codes of the network wait, too: only the provider can say which are valid.
  assert.equal(await signIn('192.0.2.1'), 429);
  assert.equal(asked(), before + 20, 'the provider is not asked');
  // Other networks and other providers are not affected.
  assert.equal(await signIn('192.0.2.2'), 303);
  assert.equal(await signIn('192.0.2.1', true, 'two'), 303);
  const { refused } = await connectionOf(response.headers.get('request-id'));
  assert.equal(refused.error, 'upstream-throttled');
  assert.match(
    refused.explanation ?? '',
    /^Example ID has refused too many codes from the network of the user/,
  );
});

test('attack: codes that are sent at once do not exceed the limit of refused ones', async () => {
  const begun: Begun[] = [];
  for (let count = 0; count < 40; count += 1) begun.push(await begin());
  const before = asked();
  const responses = await Promise.all(begun.map((each) => comeBack(each, '192.0.2.3', false)));
  const statuses = responses.map(({ status }) => status);
  assert.equal(statuses.filter((status) => status === 400).length, 20, String(statuses));
  assert.equal(statuses.filter((status) => status === 429).length, 20, String(statuses));
  assert.equal(asked(), before + 20);
});

test('attack: the networks of an IPv6 site have three times the limit together', async () => {
  for (const network of ['1', '2', '3']) {
    await useUp(`2001:db8:5:${network}::1`);
    // Refused without a request to the provider, so it uses up nothing of the site.
    assert.equal(await signIn(`2001:db8:5:${network}::2`, false), 429);
  }
  assert.equal(await signIn('2001:db8:5:4::1'), 429);
  assert.equal(await signIn('2001:db8:6:1::1'), 303);
});

test('sign-ins of many users behind one address are not limited, also at once', async () => {
  await useUp('192.0.2.4', 12);
  const begun: Begun[] = [];
  for (let count = 0; count < 40; count += 1) begun.push(await begin());
  const responses = await Promise.all(begun.map((each) => comeBack(each, '192.0.2.4', true)));
  assert.deepEqual([...new Set(responses.map(({ status }) => status))], [303]);
  await useUp('192.0.2.4', 8);
  assert.equal(await signIn('192.0.2.4'), 429);
});

test('a provider in trouble, or a wrong client secret, does not use up the limit', async () => {
  const others = [
    [429, 'too_many_requests', 400],
    [503, 'temporarily_unavailable', 503],
    [400, 'temporarily_unavailable', 400],
    [401, 'invalid_client', 400],
  ] as const;
  for (const [status, error, shown] of others) {
    refusal = { status, error };
    for (let count = 0; count < 6; count += 1) assert.equal(await signIn('192.0.2.5', false), shown, error);
  }
  // Neither does a cancelled sign-in.
  for (let count = 0; count < 21; count += 1) {
    const { browser, authorize } = await begin();
    const url = new URL(callbackOf(authorize, { iss: one.issuer, error: 'access_denied' }));
    url.searchParams.delete('code');
    await (await browser.request(url.href, { headers: { 'x-forwarded-for': '192.0.2.5' } })).text();
  }
  assert.equal(await signIn('192.0.2.5'), 303);
});

test('attack: codes that a firewall of the provider refuses count, too', async () => {
  refusal = { status: 403, error: null };
  const before = asked();
  for (let count = 0; count < 20; count += 1) assert.ok((await signIn('192.0.2.6', false)) !== 429);
  assert.equal(await signIn('192.0.2.6', false), 429);
  assert.equal(asked(), before + 20);
});
