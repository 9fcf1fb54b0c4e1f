/** Who may read `/metrics`: programs on this machine, who has the token, or who reaches the metrics' own port. */

import assert from 'node:assert/strict';
import { request as requestHttp } from 'node:http';
import { networkInterfaces } from 'node:os';
import { type TestContext, test } from 'node:test';
import type { Environment } from '../../src/config/environment.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';

/** Sends a path as it is; `fetch` normalizes it. */
function get(port: number, path = '/metrics', headers: Record<string, string> = {}, host = '127.0.0.1') {
  return new Promise<{ status: number; headers: Record<string, unknown>; text: string }>(
    (resolve, reject) => {
      const request = requestHttp({ host, port, path, headers: { host: `localhost:${port}`, ...headers } });
      request.on('error', reject).on('response', async (response) => {
        const text = (await response.setEncoding('utf8').toArray()).join('');
        resolve({ status: response.statusCode ?? 0, headers: response.headers, text });
      });
      request.end();
    },
  );
}

async function start(t: TestContext, environment: Environment = {}) {
  const { config } = await startTestServer(t, environment);
  return config.port;
}

test('metrics without settings are for programs on this machine', async (t) => {
  const port = await start(t);
  const { status, text } = await get(port);
  assert.equal(status, 200);
  assert.match(text, /^nuncio_database_connections/m);
  assert.equal((await get(port, '/metrics', { host: `127.0.0.1:${port}` })).status, 200);
});

test('metrics without settings are refused to a request that a proxy on this machine passed on', async (t) => {
  const port = await start(t);
  const proxied: Record<string, string>[] = [
    { 'x-forwarded-for': '127.0.0.1' },
    { 'x-forwarded-for': '' },
    { 'X-Forwarded-Host': 'localhost' },
    { 'x-forwarded-anything': '1' },
    { forwarded: 'for=127.0.0.1' },
    { via: '1.1 proxy' },
    { 'x-real-ip': '127.0.0.1' },
    { host: 'api.example.com' },
    { host: 'localhost.example.com' },
    { host: '10.0.0.1' },
  ];
  for (const path of ['/metrics', '/metrics?x', '/metrics#x']) {
    for (const headers of proxied) {
      const { status, text } = await get(port, path, headers);
      assert.equal(status, 403, JSON.stringify(headers));
      assert.equal(JSON.parse(text).code, 'metrics-local');
      assert.doesNotMatch(text, /nuncio_http/);
    }
  }
});

test('metrics without settings are refused to the address of a trusted proxy, also without its headers', async (t) => {
  const port = await start(t, { NUNCIO_TRUST_PROXY: '10.0.0.1,127.0.0.0/8' });
  assert.equal((await get(port)).status, 403);
  assert.equal((await get(port, '/metrics', { 'x-forwarded-for': '127.0.0.1' })).status, 403);
});

test('metrics without settings are refused to other machines', async (t) => {
  const addresses = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
  const address = addresses.find(({ internal, family }) => !internal && family === 'IPv4')?.address;
  if (address === undefined) return t.skip('this machine has no other address');
  const port = await start(t, { HOST: '0.0.0.0' });
  assert.equal((await get(port, '/metrics', {}, address)).status, 403);
  assert.equal((await get(port)).status, 200);
});

test('metrics with a token need it, also on this machine', async (t) => {
  const token = 'a-token-of-the-operator';
  const port = await start(t, { NUNCIO_METRICS_TOKEN: token });
  const wrong = [
    '',
    token,
    `Bearer ${token}x`,
    `Bearer ${token.slice(1)}`,
    `Basic ${token}`,
    'Bearer',
    'Bearer ',
  ];
  for (const authorization of wrong) {
    const { status, headers, text } = await get(
      port,
      '/metrics',
      authorization === '' ? {} : { authorization },
    );
    assert.equal(status, 401, authorization);
    assert.match(String(headers['www-authenticate']), /^Bearer /);
    assert.doesNotMatch(text, new RegExp(`nuncio_http|${token}`));
  }
  const headers = {
    authorization: `bearer ${token}`,
    host: 'api.example.com',
    'x-forwarded-for': '10.0.0.1',
  };
  assert.equal((await get(port, '/metrics', headers)).status, 200);
});

test('metrics on a port of their own are nowhere else, and that port has nothing else', async (t) => {
  const metricsPort = await freePort();
  const port = await start(t, { NUNCIO_METRICS_PORT: String(metricsPort) });
  for (const path of ['/metrics', '/%6detrics']) assert.equal((await get(port, path)).status, 404);
  const { status, text } = await get(metricsPort, '/metrics', { host: 'node-1.internal', via: '1.1 proxy' });
  assert.equal(status, 200);
  assert.match(text, /^nuncio_delivery_/m);
  for (const path of ['/', '/livez', '/api', '/admin/accounts', '/oauth/authorize', '/console']) {
    assert.equal((await get(metricsPort, path)).status, 404, path);
  }
});

test('metrics on a port of their own need the token when there is one', async (t) => {
  const metricsPort = await freePort();
  const token = 'x'.repeat(16);
  await start(t, { NUNCIO_METRICS_PORT: String(metricsPort), NUNCIO_METRICS_TOKEN: token });
  assert.equal((await get(metricsPort)).status, 401);
  assert.equal((await get(metricsPort, '/metrics', { authorization: `Bearer ${token}` })).status, 200);
});

test('a path that is spelled with encoded characters passes no rule of a proxy: it is 404', async (t) => {
  const port = await start(t);
  const paths = [
    '/%6detrics',
    '/metric%73',
    '/%6Detrics?x',
    '/%6Dmetrics',
    '/livez%20',
    '/live%7A',
    '/%61dmin/accounts',
  ];
  paths.push(
    '/%61pi',
    '/oauth/%6awks',
    '/%6fauth/authorize',
    '/%63onsole',
    '/console%2Fapps',
    '/articles%2f1',
    '/%64ocs/',
  );
  for (const path of paths) assert.equal((await get(port, path)).status, 404, path);
  // Parameters may be encoded.
  assert.equal((await get(port, '/articles/%61bc')).status, 401);
  assert.equal((await get(port, '/console/%61pps')).status, 200);
});
