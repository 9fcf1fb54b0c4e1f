/** How the console is served: headers, compressed forms, and only content that its policy permits. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import { startConsoleServer } from '../support/console/console_page.ts';

const server = await startConsoleServer({ after });

/** Limit for the compressed size of everything that the first page needs. */
const firstViewBytesMax = 250_000;

/** Requests a path without decompressing the response. */
async function get(path: string, headers: Record<string, string> = {}) {
  const { request } = await import('node:http');
  return new Promise<{ status: number; headers: Record<string, unknown>; body: Buffer }>(
    (resolve, reject) => {
      const sent = request(new URL(path, server.baseUrl), { headers }, (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('end', () =>
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            body: Buffer.concat(chunks),
          }),
        );
      });
      sent.on('error', reject).end();
    },
  );
}

const index = await get('/console');
const assets = [...index.body.toString().matchAll(/(?:src|href)="(\/console\/assets\/[^"]+)"/g)].map(
  ([, path]) => path as string,
);
const application = await applicationFiles();

test('every address of the console returns the page with no-store and a strict content security policy', async () => {
  for (const path of ['/console', '/console/', '/console/callback?code=x', '/console/subscriptions/1']) {
    const { status, headers } = await get(path);
    assert.equal(status, 200, path);
    assert.equal(headers['cache-control'], 'no-store');
    assert.equal(headers['content-type'], 'text/html; charset=utf-8');
    const policy = String(headers['content-security-policy']);
    assert.match(policy, /default-src 'none'; script-src 'self'; style-src 'self';/);
    assert.match(policy, /frame-ancestors 'none'; base-uri 'none'; form-action 'self'$/);
    assert.doesNotMatch(policy, /unsafe|https?:|\*/);
  }
  const text = index.body.toString();
  assert.doesNotMatch(text, /<style|<script>|\son\w+=|style=|https?:\/\/(?!localhost)/);
  assert.ok(text.includes(`data-issuer="${server.baseUrl}"`));
});

test('files of the console have hashed names and are cached for ever', async () => {
  assert.ok(assets.length >= 3, String(assets));
  for (const path of assets) {
    assert.match(path, /-[\w-]{8}\.(?:js|css|svg)$/);
    const { status, headers } = await get(path);
    assert.deepEqual([status, headers['cache-control']], [200, 'public, max-age=31536000, immutable'], path);
    assert.equal(headers.vary, 'accept-encoding');
    assert.equal(headers['x-content-type-options'], 'nosniff');
  }
});

/** Returns the files that the first script loads for a signed-in user: the application and its static imports. */
async function applicationFiles(): Promise<string[]> {
  const read = async (path: string) => (await get(path)).body.toString();
  const first = assets.find((path) => /\/index-[^/]+\.js$/.test(path)) ?? '';
  const found = new Set((await read(first)).match(/application-[\w-]{8}\.js/g) ?? []);
  for (const name of found) {
    const code = await read(`/console/assets/${name}`);
    for (const [, imported] of code.matchAll(/(?:\bfrom|\bimport)\s*["'`]\.\/([^"'`]+\.js)["'`]/g)) {
      found.add(imported as string);
    }
  }
  return [...found].map((name) => `/console/assets/${name}`).filter((path) => !assets.includes(path));
}

test('a signed-out visitor loads at most 10 kB of script before the sign-in link', async () => {
  let total = 0;
  for (const path of assets.filter((name) => name.endsWith('.js'))) {
    total += (await get(path, { 'accept-encoding': 'br' })).body.length;
  }
  assert.ok(total > 0 && total < 10_000, `${total} bytes`);
});

test('files are compressed on request, and the first view is at most 250 kB', async () => {
  let total = 0;
  assert.ok(application.length >= 3, String(application));
  for (const path of [...assets, ...application]) {
    const plain = await get(path);
    const gzip = await get(path, { 'accept-encoding': 'gzip, deflate' });
    const brotli = await get(path, { 'accept-encoding': 'gzip, deflate, br, zstd' });
    const refused = await get(path, { 'accept-encoding': 'gzip;q=0, br;q=0' });
    assert.deepEqual(
      [plain, gzip, brotli, refused].map(({ headers }) => headers['content-encoding']),
      [undefined, 'gzip', 'br', undefined],
      path,
    );
    assert.ok(gunzipSync(gzip.body).equals(plain.body));
    assert.ok(brotliDecompressSync(brotli.body).equals(plain.body));
    total += brotli.body.length;
  }
  assert.ok(total < firstViewBytesMax, `${total} bytes`);
});

test('a file outside the build is 404 by any path', async () => {
  for (const name of ['index.html', 'nothing.js', '..%2findex.html', '%2e%2e%2f%2e%2e%2fpackage.json']) {
    const { status } = await get(`/console/assets/${name}`);
    assert.equal(status, 404, name);
  }
});
