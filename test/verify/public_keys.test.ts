/** Public keys from a URL or a function: kept, loaded again, and limited in time and size. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { type PublicKeys, type VerificationError, verify } from '../../src/verify/verify.ts';

const file = new URL('../vectors/signatures.json', import.meta.url);
const { cases } = JSON.parse(readFileSync(file, 'utf8'));
const { headers, body, public_keys } = cases.find(
  ({ name }: { name: string }) => name === 'ed25519: the published example',
);
const check = (publicKeys: PublicKeys, text = body) =>
  verify({ headers, body: text, publicKeys, tolerance: 1e12 });
const withCode = (code: string) => (error: VerificationError) => error.code === code;

async function serve(t: TestContext, listener: RequestListener): Promise<string> {
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/meta`;
}

test('keys of a URL are loaded once for many deliveries, and again after five minutes', async (t) => {
  let requests = 0;
  const url = await serve(t, (_request, response) => {
    requests += 1;
    response.end(JSON.stringify({ public_keys }));
  });
  await Promise.all(Array.from({ length: 20 }, () => check(url)));
  await check(new URL(url));
  assert.equal(requests, 1);
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() });
  t.mock.timers.tick(299_000);
  await check(url);
  assert.equal(requests, 1);
  t.mock.timers.tick(2_000);
  await check(url);
  assert.equal(requests, 2);
  // A clock that is set back does not stop loading.
  t.mock.timers.setTime(Date.now() - 3_600_000);
  await check(url);
  assert.equal(requests, 3);
});

test('keys that cannot be loaded again are used for a day', async (t) => {
  let isDown = false;
  const url = await serve(t, (_request, response) => {
    response.writeHead(isDown ? 500 : 200).end(JSON.stringify({ public_keys }));
  });
  await check(url);
  isDown = true;
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() });
  t.mock.timers.tick(86_000_000);
  await check(url);
  t.mock.timers.tick(1_000_000);
  await assert.rejects(check(url), withCode('keys-unavailable'));
  isDown = false;
  await assert.rejects(check(url), withCode('keys-unavailable'), 'not within 30 seconds');
  t.mock.timers.tick(30_000);
  await check(url);
});

const failures: Record<string, RequestListener> = {
  'an error': (_request, response) => response.writeHead(404).end(JSON.stringify({ public_keys })),
  'a redirect': (_request, response) => response.writeHead(302, { location: '/other' }).end(),
  'a page': (_request, response) => response.end('<!doctype html>'),
  'another document': (_request, response) => response.end('{"keys":[]}'),
  null: (_request, response) => response.end('null'),
  'a document of 10 MB': (_request, response) =>
    response.end(JSON.stringify({ public_keys, filler: 'x'.repeat(10_000_000) })),
  'a closed connection': (request) => request.destroy(),
};

for (const [name, listener] of Object.entries(failures)) {
  test(`keys are unavailable when the URL responds with ${name}`, async (t) => {
    const url = await serve(t, listener);
    await assert.rejects(check(url), (error: VerificationError) => {
      assert.equal(error.code, 'keys-unavailable');
      assert.equal(error.status, 503);
      assert.ok(error.cause instanceof Error);
      return true;
    });
  });
}

test('a server that does not respond is given up after five seconds', async (t) => {
  const url = await serve(t, () => {});
  const begin = performance.now();
  await assert.rejects(check(url), withCode('keys-unavailable'));
  assert.ok(performance.now() - begin >= 4_900);
});

test('keys are not loaded from an http URL elsewhere', async () => {
  for (const url of [
    'http://id.example.com/meta',
    'http://localhost.example.com/meta',
    'http://localhost:x@evil.example/',
  ])
    await assert.rejects(check(url), withCode('keys-unavailable'));
});

test('a function that throws makes the keys unavailable', async () => {
  const failing = () => {
    throw new Error('no keys today');
  };
  await assert.rejects(check(failing), (error: VerificationError) => error.message.includes('no keys today'));
  await assert.rejects(
    check(async () => 'whpk_x'),
    withCode('keys-unavailable'),
  );
});

test('malformed keys are refused', async () => {
  for (const keys of ['', 'whpk_', 'x', [null], [{}], {}, { public_keys: 1 }, 7, [[]]])
    await assert.rejects(check(keys as never), withCode('malformed-public-key'), JSON.stringify(keys));
  await assert.rejects(check([]), withCode('unknown-key'));
  await assert.rejects(check(undefined as never), withCode('no-public-keys'));
});
