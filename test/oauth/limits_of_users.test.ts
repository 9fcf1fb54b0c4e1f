/** What one user, or a visitor, can make an app ask for does not use up what its other users need. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, createTestClient, obtainCode, postForm } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { startOfMinute } from '../support/values/minute.ts';

const limit = 20;
const server = await startTestServer(
  { after },
  { NUNCIO_RATE_LIMIT: String(limit), NUNCIO_TRUST_PROXY: '127.0.0.1' },
);

test('attack: one user who signs in again and again does not have an app use up its limit', async () => {
  const [app, another] = [
    await createTestClient(server, { scopes: ['read:posts'] }),
    await createTestClient(server, { scopes: ['read:posts'] }),
  ];
  const [greedy, other] = [await createTestAccount(server), await createTestAccount(server)];
  const browser = new TestBrowser(server.baseUrl);
  const signIn = async (account = greedy, client = app, by = browser) => {
    const { redirect } = await obtainCode(server, { account, client, scopes: ['read:posts'], browser: by });
    return redirect.searchParams.get('error') ?? (redirect.searchParams.has('code') ? 'a code' : 'nothing');
  };
  await startOfMinute();
  const results: string[] = [];
  for (let index = 0; index < limit / 10 + 2; index += 1) results.push(await signIn());
  assert.deepEqual(results, ['a code', 'a code', 'temporarily_unavailable', 'temporarily_unavailable']);
  assert.equal(await signIn(greedy, another), 'a code');
  assert.equal(await signIn(other, app, new TestBrowser(server.baseUrl)), 'a code');
});

test('attack: devices on which nobody signs in do not keep the others of their app waiting', async () => {
  const grantType = 'urn:ietf:params:oauth:grant-type:device_code';
  const app = await createTestClient(server, {
    grantTypes: ['client_credentials', grantType],
    scopes: ['read:posts'],
  });
  const account = await createTestAccount(server);
  const begin = async () => (await postForm(server, '/oauth/device', app, { scope: 'read:posts' })).body;
  const [waiting, decided, denied] = [await begin(), await begin(), await begin()];
  for (const [device, action] of [
    [decided, 'allow'],
    [denied, 'deny'],
  ] as const) {
    const browser = new TestBrowser(server.baseUrl);
    const input = await browser.open(`${server.baseUrl}/device`);
    const confirmation = await browser.submit(input, { user_code: String(device.user_code) });
    const login = await browser.submit(confirmation, {});
    const { email, password } = account;
    const consent = await browser.submit(login, { email, password, action: 'login' });
    await browser.submit(consent, { action });
  }
  const poll = async (device: { device_code?: unknown }) => {
    const { status, body } = await postForm(server, '/oauth/token', app, {
      grant_type: grantType,
      device_code: String(device.device_code),
    });
    return body.error ?? status;
  };
  await startOfMinute();
  const results: unknown[] = [];
  for (let index = 0; index < 10 * limit + 2; index += 1) results.push(await poll(waiting));
  assert.deepEqual(results.slice(0, 2), ['authorization_pending', 'slow_down']);
  assert.equal(results.lastIndexOf('slow_down'), 10 * limit - 1);
  // Above the limit, it only is told to go on waiting: with 429, it would wait for the rest of the minute.
  assert.deepEqual(results.slice(-2), ['authorization_pending', 'authorization_pending']);
  const forToken = { grant_type: 'client_credentials', scope: 'read:posts' };
  assert.equal((await postForm(server, '/oauth/token', app, forToken)).status, 200);
  assert.deepEqual([await poll(decided), await poll(denied)], [200, 'access_denied']);
  assert.equal(await poll({ device_code: 'invented' }), 'temporarily_unavailable');
  // Whoever only names the app counts for its own address.
  const named = { grant_type: grantType, device_code: String(waiting.device_code), client_id: app.id };
  const strangers: unknown[] = [];
  for (let index = 0; index < limit + 2; index += 1)
    strangers.push(
      (await postForm(server, '/oauth/token', null, named, { 'x-forwarded-for': '198.51.100.7' })).body.error,
    );
  assert.deepEqual(strangers.slice(0, limit), Array(limit).fill('authorization_pending'));
  assert.deepEqual(strangers.slice(limit), Array(2).fill('temporarily_unavailable'));
});
