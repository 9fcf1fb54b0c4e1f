/** What strangers can store without credentials: pages that keep a state for their browser, and changes of registrations. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { TestBrowser } from '../support/browser/browser.ts';
import { authorize, createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { startOfMinute } from '../support/values/minute.ts';

const limit = 3;
const trusted = { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' };
const limited = await startTestServer({ after }, { NUNCIO_RATE_LIMIT: String(limit), ...trusted });
const server = await startTestServer({ after });

async function countSessions(): Promise<number> {
  const { rows } = await sql<{ count: number }>`select count(*)::int from login_sessions`.execute(limited.db);
  return rows[0]?.count ?? 0;
}

test('attack: one address opens pages of sign-out and devices again and again, without cookies', async () => {
  const pages = ['/oauth/logout?state=kept', '/device'];
  for (const [index, page] of pages.entries()) {
    const open = (address: string) =>
      fetch(limited.baseUrl + page, { headers: { 'x-forwarded-for': address } });
    await startOfMinute();
    const before = await countSessions();
    const statuses: number[] = [];
    for (let count = 0; count < limit + 2; count += 1) {
      const { status, headers } = await open(`192.0.2.${index}`);
      assert.match(headers.get('content-type') ?? '', /^text\/html/);
      statuses.push(status);
    }
    assert.deepEqual(statuses, [200, 200, 200, 429, 429], page);
    assert.equal((await countSessions()) - before, limit);
    assert.equal((await open(`198.51.100.${index}`)).status, 200);
  }
});

test('attack: an app that registered itself changes its registration again and again', async () => {
  const metadata = { client_name: 'An app', redirect_uris: ['https://app.example/callback'] };
  const send = async (url: string, method: string, body: object, authorization: Record<string, string>) => {
    const headers = {
      'content-type': 'application/json',
      'x-forwarded-for': '203.0.113.1',
      ...authorization,
    };
    const response = await fetch(url, { method, headers, body: JSON.stringify(body) });
    return { status: response.status, body: (await response.json()) as Record<string, string> };
  };
  await startOfMinute();
  let { status, body } = await send(`${limited.baseUrl}/oauth/register`, 'POST', metadata, {});
  assert.equal(status, 201);
  const { client_id: id = '', registration_client_uri: uri = '' } = body;
  const statuses: number[] = [];
  for (let count = 0; count < limit + 1; count += 1) {
    const authorization = { authorization: `Bearer ${body.registration_access_token}` };
    ({ status, body } = await send(uri, 'PUT', { ...metadata, client_id: id }, authorization));
    statuses.push(status);
  }
  assert.deepEqual(statuses, [200, 200, 200, 429]);
  assert.equal(body.error, 'temporarily_unavailable');
});

test('a session without a user lasts for an hour, and one of a user for two weeks', async () => {
  const hours = async () => {
    const { rows } = await sql<{ hours: number }>`
      select round(extract(epoch from expires_at - now()) / 3600)::int as hours from login_sessions`.execute(
      server.db,
    );
    return rows.map((row) => row.hours);
  };
  const browser = new TestBrowser(server.baseUrl);
  await browser.open(`${server.baseUrl}/device`);
  assert.deepEqual(await hours(), [1]);
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  await authorize(server, { account, client, scopes: ['read:posts'], browser });
  assert.deepEqual(await hours(), [14 * 24]);
});
