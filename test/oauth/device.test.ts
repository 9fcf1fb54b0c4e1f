/** The device flow (RFC 8628) over HTTP: the device polls while a person enters the code elsewhere. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { digest } from '../../src/crypto/digest.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { type Page, TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, createTestClient, postForm } from '../support/clients/oauth.ts';
import { freePort, startTestServer, testSecret } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server, {
  authMethod: 'none',
  redirectUris: [],
  grantTypes: [deviceCodeGrantType, 'refresh_token'],
});

interface Started {
  deviceCode: string;
  userCode: string;
  complete: string;
}

async function start(as = client): Promise<Started> {
  const { status, body } = await postForm(server, '/oauth/device', as, { scope: 'read:posts' });
  assert.equal(status, 200, JSON.stringify(body));
  return {
    deviceCode: String(body.device_code),
    userCode: String(body.user_code),
    complete: String(body.verification_uri_complete),
  };
}

/** Polls once. Instead of waiting, moves the time in the database row. */
async function poll(deviceCode: string, as = client, waited = true) {
  if (waited) {
    await sql`
      update device_codes set last_polled_at = last_polled_at - interval '10 minutes'
      where digest = ${digest(deviceCode)}`.execute(server.db);
  }
  return postForm(server, '/oauth/token', as, { grant_type: deviceCodeGrantType, device_code: deviceCode });
}

test('no cache stores the pages of a device', async () => {
  const { body } = await postForm(server, '/oauth/device', client, { scope: 'read:posts' });
  for (const url of [
    `${server.baseUrl}/device`,
    body.verification_uri_complete,
    `${server.baseUrl}/device?user_code=X`,
  ]) {
    const response = await fetch(String(url));
    await response.arrayBuffer();
    assert.match(response.headers.get('cache-control') ?? '', /no-store/, String(url));
  }
});

/** Enters a code and confirms every page, or denies the last one. */
async function enter(userCode: string, answer: 'allow' | 'deny' = 'allow'): Promise<Page> {
  const browser = new TestBrowser(server.baseUrl);
  const input = await browser.open(`${server.baseUrl}/device`);
  const confirmation = await browser.submit(input, { user_code: userCode });
  assert.match(confirmation.text, /name="confirm"/);
  let page = await browser.submit(confirmation, {});
  page = await browser.submit(page, { email: account.email, password: account.password, action: 'login' });
  return browser.submit(page, { action: answer });
}

test('oauth 53: a device authorization response has every required field', async () => {
  const { status, headers, body } = await postForm(server, '/oauth/device', client, { scope: 'read:posts' });
  assert.equal(status, 200);
  assert.equal(headers.get('cache-control'), 'no-store');
  assert.equal(body.verification_uri, `${server.baseUrl}/device`);
  assert.equal(body.verification_uri_complete, `${server.baseUrl}/device?user_code=${body.user_code}`);
  assert.equal(body.interval, 5);
  assert.equal(typeof body.expires_in, 'number');
  assert.match(String(body.user_code), /^[A-Z]{4}-[A-Z]{4}$/);
  const plain = await createTestClient(server);
  const refused = await postForm(server, '/oauth/device', plain, {});
  assert.deepEqual([refused.status, refused.body.error], [400, 'unauthorized_client']);
  const wrong = await postForm(server, '/oauth/device', { ...plain, secret: 'wrong' }, {});
  assert.deepEqual([wrong.status, wrong.body.error], [401, 'invalid_client']);
});

test('oauth 54: polling returns authorization_pending, then slow_down with 5 more seconds when it is too fast', async () => {
  const { deviceCode } = await start();
  const first = await poll(deviceCode);
  assert.deepEqual([first.status, first.body.error], [400, 'authorization_pending']);
  for (const seconds of [10, 15]) {
    const soon = await poll(deviceCode, client, false);
    assert.deepEqual([soon.status, soon.body.error], [400, 'slow_down']);
    const { rows } = await sql<{ interval_seconds: number }>`
      select interval_seconds from device_codes where digest = ${digest(deviceCode)}`.execute(server.db);
    assert.equal(rows[0]?.interval_seconds, seconds);
  }
  const later = await poll(deviceCode);
  assert.equal(later.body.error, 'authorization_pending');
  // Of two concurrent polls, one is too early.
  await poll(deviceCode);
  const both = await Promise.all([poll(deviceCode, client, false), poll(deviceCode, client, false)]);
  assert.ok(both.every(({ body }) => body.error === 'slow_down'));
});

test('a device gets its tokens once after the user allows it', async () => {
  const { deviceCode, userCode } = await start();
  const page = await enter(userCode);
  assert.match(page.text, /Device connected/);
  const { status, body } = await poll(deviceCode);
  assert.equal(status, 200, JSON.stringify(body));
  assert.equal(body.scope, 'read:posts');
  assert.ok(body.refresh_token);
  const again = await poll(deviceCode);
  assert.deepEqual([again.status, again.body.error], [400, 'invalid_grant']);
});

test('exactly one of 20 concurrent polls for an allowed code gets tokens', async () => {
  const { deviceCode, userCode } = await start();
  await enter(userCode);
  const answers = await Promise.all(Array.from({ length: 20 }, () => poll(deviceCode, client, false)));
  assert.equal(answers.filter(({ status }) => status === 200).length, 1);
  assert.ok(answers.every(({ status }) => status === 200 || status === 400));
});

test('oauth 55: polling is refused when the code is denied, expired, unknown or another client’s', async () => {
  const denied = await start();
  await enter(denied.userCode, 'deny');
  assert.equal((await poll(denied.deviceCode)).body.error, 'access_denied');

  const expired = await start();
  await sql`
    update device_codes set expires_at = now(), payload = payload || jsonb_build_object(
      'exp', floor(extract(epoch from now())) - 1)
    where digest = ${digest(expired.deviceCode)}`.execute(server.db);
  assert.equal((await poll(expired.deviceCode)).body.error, 'expired_token');

  assert.equal((await poll('unknown')).body.error, 'invalid_grant');
  const other = await createTestClient(server, { authMethod: 'none', grantTypes: [deviceCodeGrantType] });
  const { deviceCode } = await start();
  assert.equal((await poll(deviceCode, other)).body.error, 'invalid_grant');
  const { rows } = await sql<{ text: string }>`select d::text as text from device_codes d`.execute(server.db);
  assert.ok(rows.every(({ text }) => !text.includes(deviceCode)));
});

test('oauth 56: user codes work in any case, with spaces, without dashes; the complete URI still asks', async () => {
  for (const spell of [
    (code: string) => code.toLowerCase(),
    (code: string) => code.replace('-', ''),
    (code: string) => ` ${code.replace('-', '  ')} `,
  ]) {
    const { userCode, deviceCode } = await start();
    await enter(spell(userCode));
    assert.equal((await poll(deviceCode)).status, 200);
  }
  const { complete, deviceCode, userCode } = await start();
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(complete);
  const confirmation = await browser.submit(page, {});
  assert.match(confirmation.text, /name="confirm"/);
  assert.ok(confirmation.text.includes(userCode));
  assert.equal((await poll(deviceCode)).body.error, 'authorization_pending');
  const refused = await browser.submit(confirmation, { abort: 'yes' });
  assert.match(refused.text, /Device not connected/);
  assert.equal((await poll(deviceCode)).body.error, 'access_denied');
});

test('oauth 28: the device pages cannot be framed, and refuse a form without its token', async () => {
  const { userCode, deviceCode } = await start();
  const browser = new TestBrowser(server.baseUrl);
  const input = await browser.open(`${server.baseUrl}/device`);
  assert.match(input.response.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  assert.equal(input.response.headers.get('x-frame-options'), 'DENY');
  const forged = await browser.submit(input, { user_code: userCode, xsrf: 'guessed', confirm: 'yes' });
  assert.equal(forged.response.status, 400);
  const stranger = await new TestBrowser(server.baseUrl).submit(input, {
    user_code: userCode,
    confirm: 'yes',
  });
  assert.equal(stranger.response.status, 400);
  assert.equal((await poll(deviceCode)).body.error, 'authorization_pending');
});

test('oauth 56: guesses of user codes are limited', async () => {
  const browser = new TestBrowser(server.baseUrl);
  let page = await browser.open(`${server.baseUrl}/device`);
  const statuses = new Set<number>();
  for (let guess = 0; guess < 21; guess += 1) {
    page = await browser.submit(page, { user_code: 'BBBB-BBBB' });
    statuses.add(page.response.status);
  }
  assert.ok(statuses.has(429), [...statuses].join());
  assert.match(page.text, /Too many/);
});

test('the log says what to do about too many guesses, and about an unknown page after signing out', async (context) => {
  const lines: string[] = [];
  const port = await freePort();
  const config = { ...server.config, port, baseUrl: `http://localhost:${port}` };
  const logged = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: server.databaseUrl,
    secret: testSecret,
    logger: pino({ level: 'info' }, { write: (line: string) => void lines.push(line) }),
  });
  context.after(() => logged.close());
  const explanations = () =>
    lines.flatMap((line) => JSON.parse(line).explanation ?? []).filter((text) => typeof text === 'string');
  const browser = new TestBrowser(config.baseUrl);
  let page = await browser.open(`${config.baseUrl}/device`);
  for (let guess = 0; guess < 21; guess += 1) {
    page = await browser.submit(page, { user_code: 'BBBB-BBBB' });
  }
  assert.match(explanations().at(-1) ?? '', /^Too many wrong codes.* Wait a few minutes/);
  const parameters = { client_id: client.id, post_logout_redirect_uri: 'https://evil.example/' };
  await browser.open(`${config.baseUrl}/oauth/logout?${new URLSearchParams(parameters)}`);
  assert.match(explanations().at(-1) ?? '', /Expected exactly one of the post_logout_redirect_uris/);
});
