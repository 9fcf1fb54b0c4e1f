/** A database outage: the server responds 503, and everything resumes afterwards. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { loadConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/database/database.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { createTestAccount, createTestClient, mintAccessToken, postForm } from '../support/clients/oauth.ts';
import { createDatabase } from '../support/database/database.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { freePort, testSecret } from '../support/servers/server.ts';

async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await sleep(50);
}

test('the server answers 503 without its database and resumes by itself', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const proxy = await startDatabaseProxy(database.url);
  t.after(() => proxy.close());
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  t.after(() => db.destroy());
  const config = loadConfig({ PORT: String(await freePort()), LOG_LEVEL: 'silent' }, 'dev');
  const running = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: proxy.url,
    secret: testSecret,
    logger: pino({ level: 'silent' }),
  });
  t.after(() => running.close());

  const account = await createTestAccount({ db });
  const client = await createTestClient({ db });
  const { accessToken, grantId } = await mintAccessToken(
    { db, config },
    { account, client, scopes: ['read:posts', 'write:posts'] },
  );
  const headers = { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' };
  const call = (path: string, body?: unknown) =>
    fetch(`${config.baseUrl}${path}`, {
      headers,
      ...(body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }),
    });
  assert.equal((await call('/articles', { title: 'before' })).status, 201);

  proxy.cut();
  await until(async () => (await call('/readyz')).status === 503);
  for (const answer of [await call('/articles'), await call('/articles', { title: 'meanwhile' })]) {
    assert.equal(answer.status, 503);
    assert.equal(answer.headers.get('content-type'), 'application/problem+json');
    assert.ok(Number(answer.headers.get('retry-after')) > 0);
    const problem = (await answer.json()) as { status: number; detail: string };
    assert.equal(problem.status, 503);
    assert.doesNotMatch(JSON.stringify(problem), /ECONN|127\.0\.0\.1|select|postgres:/);
  }
  assert.equal((await call('/livez')).status, 200);
  // The authorization server recovers, too: a retry succeeds.
  const registration = JSON.stringify({ redirect_uris: ['https://app.example/callback'] });
  const refresh = { grant_type: 'refresh_token', refresh_token: 'one' };
  for (const answer of [
    await postForm(config, '/oauth/token', client, refresh),
    await postForm(config, '/oauth/introspect', client, { token: accessToken }),
    await postForm(config, '/oauth/device', client, {}),
    await fetch(`${config.baseUrl}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: registration,
    }),
  ]) {
    assert.equal(answer.status, 503);
    assert.ok(Number(answer.headers.get('retry-after')) > 0);
    const body = answer instanceof Response ? await answer.json() : answer.body;
    assert.equal((body as { error: string }).error, 'temporarily_unavailable');
  }
  const page = await fetch(`${config.baseUrl}/oauth/authorize?client_id=nobody`, {
    headers: { accept: 'text/html' },
  });
  assert.equal(page.status, 503);
  assert.match(await page.text(), /Try again in a moment/);

  proxy.mend();
  await until(async () => (await call('/readyz')).status === 200);
  await until(async () => (await call('/articles')).status === 200);
  assert.equal((await call('/articles', { title: 'after' })).status, 201);
  const { items } = (await (await call('/articles')).json()) as { items: { title: string }[] };
  assert.deepEqual(items.map(({ title }) => title).toSorted(), ['after', 'before']);

  // Notifications work again, too: the node learns of a withdrawal.
  await withdrawGrant(db, grantId as string, 'operator');
  await until(async () => (await call('/articles')).status === 401);
});
