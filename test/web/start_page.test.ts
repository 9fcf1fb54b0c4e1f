/** The page at the base URL: a tour in development, the operator's own page in production. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createPlatform, PlatformError } from '../../src/platform.ts';
import { startProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';

/** Asserts that every link of a page works. @returns the targets */
async function followLinks(page: string, baseUrl: string): Promise<string[]> {
  const links = [...page.matchAll(/<a href="([^"]+)"/g)].map(([, href]) => href as string);
  for (const link of links) assert.equal((await fetch(new URL(link, baseUrl))).status, 200, link);
  return links;
}

test('the base URL shows users and developers where to go, and no demo login', async (t) => {
  const { baseUrl } = await startTestServer(t);
  const response = await fetch(baseUrl);
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-type') ?? '', /^text\/html/);
  assert.match(response.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  const page = await response.text();
  assert.ok(!page.includes('demo'));
  assert.deepEqual(await followLinks(page, baseUrl), ['/account', '/device', '/console', '/docs/']);
});

test('the base URL redirects to the operator’s start page', async (t) => {
  const platform = createPlatform({ startUrl: 'https://www.example.com/apps' });
  const { baseUrl } = await startTestServer(t, {}, 'dev', platform);
  const response = await fetch(baseUrl, { redirect: 'manual' });
  assert.equal(response.status, 302);
  assert.equal(response.headers.get('location'), 'https://www.example.com/apps');
});

test('startUrl must be https, or http on loopback, without credentials', () => {
  assert.equal(createPlatform({ startUrl: 'http://localhost:8080/' }).startUrl, 'http://localhost:8080/');
  for (const startUrl of [
    'http://example.com/',
    'javascript:alert(1)',
    '/docs',
    '',
    'https://a:b@example.com/',
    7,
  ]) {
    assert.throws(() => createPlatform({ startUrl: startUrl as string }), PlatformError, String(startUrl));
  }
});

// Of the file, so that it is removed after the server has ended.
const folder = await temporaryFolder({ after });
test('the base URL shows a tour with the demo login in development', async (t) => {
  const port = String(await freePort());
  const server = startProcess(t, ['dev'], { PORT: port, NUNCIO_DATA_DIR: folder });
  await server.ready();
  const baseUrl = `http://localhost:${port}`;
  const page = await (await fetch(baseUrl)).text();
  for (const part of ['demo@example.com', 'demo-password', 'npm run demo'])
    assert.ok(page.includes(part), part);
  assert.deepEqual(await followLinks(page, baseUrl), ['/account', '/console', '/docs/', '/dev/mail']);
});
