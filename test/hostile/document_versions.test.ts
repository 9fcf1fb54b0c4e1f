/** Attacks by metadata documents that have several versions at once: each node caches the document that it fetched. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { pino } from 'pino';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  obtainCode,
  type TestClient,
} from '../support/clients/oauth.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { freePort, startTestServer, testSecret } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const admin = await createConsoleUser(server, { isAdmin: true });
const account = await createTestAccount(server);
const redirectUri = 'https://prints.example/callback';
const elsewhere = 'https://evil.example/callback';

test('attack: a node that cached another version of a verified app’s document does not use it', async () => {
  const path = '/prints.json';
  const id = site.url(path);
  const serve = (fields: Record<string, unknown>) =>
    site.serve(path, {
      headers: { 'cache-control': 'max-age=86400' },
      body: {
        client_id: id,
        redirect_uris: [redirectUri],
        token_endpoint_auth_method: 'none',
        scope: 'read:posts',
        ...fields,
      },
    });
  serve({ client_name: 'Your Bank', redirect_uris: [elsewhere] });
  const evil = { id, redirectUri: elsewhere, authMethod: 'none', secret: null } as TestClient;
  const { browser } = await obtainCode(server, { account, client: evil, scopes: ['read:posts'] });
  serve({ client_name: 'Prints' });
  const ask = (of: TestBrowser, baseUrl: string, client: TestClient) =>
    of.open(
      authorizationUrl({ baseUrl }, client, {
        scope: 'read:posts',
        prompt: 'consent',
        code_challenge: createPkce().challenge,
        code_challenge_method: 'S256',
      }),
    );
  const good = { ...evil, redirectUri };
  const port = await freePort();
  const config = { ...server.config, port, baseUrl: `http://127.0.0.1:${port}` };
  const node = await startServer({
    ...{ config, platform: await loadPlatform(null), databaseUrl: server.databaseUrl, secret: testSecret },
    ...{ logger: pino({ level: 'silent' }), egress: siteEgress },
  });
  try {
    assert.match((await ask(new TestBrowser(config.baseUrl), config.baseUrl, good)).text, /Prints/);
  } finally {
    await node.close();
  }
  const url = `/admin/apps/${encodeURIComponent(id)}`;
  const { body } = await admin.request('GET', url);
  assert.equal(body.client_name, 'Prints');
  assert.equal(
    (await admin.request('POST', `${url}/verify`, { json: { updated_at: body.updated_at } })).status,
    200,
  );
  const shown = await until(
    () => ask(browser, server.baseUrl, good),
    ({ text }) => text.includes('Prints'),
  );
  assert.match(shown.text, /Connect Prints\?/);
  const page = await ask(browser, server.baseUrl, evil);
  assert.match(page.text, /invalid_redirect_uri/);
  assert.equal(page.response.status, 400);
  assert.equal((await admin.request('GET', url)).body.state, 'verified');
});
