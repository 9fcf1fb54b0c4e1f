/** The page at the base URL: what it leads to is there. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startTestServer } from './support/server.ts';

test('the base URL shows a page whose links all lead somewhere', async (t) => {
  const { baseUrl } = await startTestServer(t);
  const response = await fetch(baseUrl);
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-type') ?? '', /^text\/html/);
  assert.match(response.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  const links = [...(await response.text()).matchAll(/<a href="([^"]+)"/g)].map(([, href]) => href as string);
  assert.equal(links.length, 4);
  for (const link of links) assert.equal((await fetch(new URL(link, baseUrl))).status, 200, link);
});
