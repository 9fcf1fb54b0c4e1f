/** A user signs in through the pages; a browser with another state, and one without a session, get nothing. */

import assert from 'node:assert/strict';
import { TestBrowser } from '../../../test/support/browser/browser.ts';
import { createTestAccount, createTestClient, passPages } from '../../../test/support/clients/oauth.ts';
import { freePort } from '../../../test/support/servers/server.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ server, start }) => {
  const port = String(await freePort());
  const origin = `http://localhost:${port}`;
  const account = await createTestAccount(server);
  const client = await createTestClient(server, {
    redirectUris: [`${origin}/callback`],
    scopes: ['read:posts'],
  });
  const env = { NUNCIO_URL: server.baseUrl, CLIENT_ID: client.id, CLIENT_SECRET: client.secret as string };
  await start('app.js', { ...env, PORT: port });

  const [app, user] = [new TestBrowser(origin), new TestBrowser(server.baseUrl)];
  const begun = await app.request(`${origin}/login`);
  const authorization = new URL(begun.headers.get('location') ?? '');
  assert.equal(authorization.searchParams.get('code_challenge_method'), 'S256');
  const redirect = await passPages(user, await user.open(authorization.href), account);

  const [stranger, victim] = [new TestBrowser(origin), new TestBrowser(origin)];
  await victim.request(`${origin}/login`);
  await victim.request(redirect.href);
  for (const browser of [stranger, victim]) assert.equal((await browser.request(`${origin}/`)).status, 401);

  await app.request(redirect.href);
  const shown = await app.request(`${origin}/`);
  assert.equal(shown.status, 200);
  assert.deepEqual(await shown.json(), { account: account.id });
};
