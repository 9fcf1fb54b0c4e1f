/** docs/app-developers.md: its code, run against a real server from the consent of a user to the end of access. */

import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { after, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import type { TokenEndpointResponse } from 'openid-client';
import * as openid from 'openid-client';
import { TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, createTestClient, passPages } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

interface Connecting {
  url: URL;
  verifier: string;
  state: string;
}

interface Guide {
  beginConnecting(): Promise<Connecting>;
  finishConnecting(callback: string, kept: Connecting): Promise<TokenEndpointResponse>;
  renew(refreshToken: string): Promise<TokenEndpointResponse>;
  request(token: string, method: string, path: string): Promise<{ title: string }>;
  writeArticle(token: string, title: string, key: string): Promise<{ id: string }>;
  subscribe(token: string, url: string): Promise<{ id: string; secret: string }>;
  readEvents(token: string, subscription: string, after: number): Promise<{ items: { kind: string }[] }>;
}

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
// The server of the test is at localhost, too.
Object.assign(process.env, {
  PLATFORM_URL: server.baseUrl,
  CLIENT_ID: client.id,
  CLIENT_SECRET: client.secret,
  REDIRECT_URI: client.redirectUri,
});
const guide = await loadGuide();

/** Writes the blocks to files by their names, below `node_modules`, where they find `openid-client`. */
async function loadGuide(): Promise<Guide> {
  const page = await readFile('docs/app-developers.md', 'utf8');
  const cache = resolve('node_modules/.cache');
  await mkdir(cache, { recursive: true });
  const folder = await mkdtemp(join(cache, 'app-developers-'));
  after(() => rm(folder, { recursive: true, force: true }));
  const blocks = [...page.matchAll(/^```js (\S+)\n([\s\S]*?)^```$/gm)];
  assert.deepEqual(
    blocks.map(([, name]) => name),
    ['connect.js', 'api.js', 'subscribe.js'],
  );
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
  for (const [, name = '', text = ''] of blocks) await writeFile(join(folder, name), text);
  const modules = blocks.map(([, name = '']) => import(pathToFileURL(join(folder, name)).href));
  return Object.assign({}, ...(await Promise.all(modules)));
}

test('the guide connects a user, calls the API, subscribes, reads events and notices the end', async (t) => {
  const connecting = await guide.beginConnecting();
  const browser = new TestBrowser(server.baseUrl);
  const callback = await passPages(browser, await browser.open(connecting.url.href), account);
  const tokens = await guide.finishConnecting(callback.href, connecting);

  const subscriber = await startSubscriber(t, answer(204));
  const subscription = await guide.subscribe(tokens.access_token, subscriber.url);
  assert.match(subscription.secret, /^whsec_/);
  const [first, again] = [
    await guide.writeArticle(tokens.access_token, 'One', 'key-1'),
    await guide.writeArticle(tokens.access_token, 'One', 'key-1'),
  ];
  assert.equal(first.id, again.id);
  const { title } = await guide.request(tokens.access_token, 'GET', `/articles/${first.id}`);
  assert.equal(title, 'One');
  await subscriber.waitFor(1);
  const { items } = await until(
    () => guide.readEvents(tokens.access_token, subscription.id, 0),
    (read) => read.items.length > 0,
  );
  assert.deepEqual(
    items.map(({ kind }) => kind),
    ['article.created'],
  );
  await assert.rejects(guide.request(tokens.access_token, 'GET', '/articles/none'), {
    status: 404,
    code: 'not-found',
  });

  const renewed = await guide.renew(tokens.refresh_token as string);
  const config = await openid.discovery(
    new URL(server.baseUrl),
    client.id,
    client.secret as string,
    undefined,
    {
      execute: [openid.allowInsecureRequests],
    },
  );
  await openid.tokenRevocation(config, renewed.refresh_token as string);
  await assert.rejects(guide.renew(renewed.refresh_token as string), { error: 'invalid_grant' });
  // A node reads withdrawals at most a second later.
  const refused = await until(
    () =>
      guide.request(renewed.access_token, 'GET', '/articles').then(
        () => null,
        ({ status, code }: { status: number; code: string }) => ({ status, code }),
      ),
    (error) => error !== null,
  );
  assert.deepEqual(refused, { status: 401, code: 'invalid-token' });
  const { rows } = await server.db
    .selectFrom('subscriptions' as never)
    .selectAll()
    .execute()
    .then((all) => ({ rows: all as { state: string }[] }));
  assert.ok(
    rows.every(({ state }) => state !== 'active'),
    JSON.stringify(rows),
  );
});
