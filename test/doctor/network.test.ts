/** What the doctor says of names, certificates and proxies, with real servers. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type Config, loadConfig } from '../../src/config/config.ts';
import type { Environment } from '../../src/config/environment.ts';
import { checkForwarding } from '../../src/doctor/forwarding.ts';
import { networkProbes } from '../../src/doctor/network.ts';
import { nodeProbes, readLocalMetrics } from '../../src/doctor/node.ts';
import { type Check, examine, exitCodeOf, type Report, reportOf } from '../../src/doctor/report.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const certificates = join(import.meta.dirname, '../support/network/certificates');
const file = (name: string) => join(certificates, name);

function find({ checks }: Report, name: string): Check {
  const found = checks.find((each) => each.name === name);
  assert.ok(found, `${name} is not among ${checks.map((each) => each.name).join(' ')}`);
  return found;
}

function configOf(environment: Environment): Config {
  return loadConfig({ NUNCIO_INSECURE_HTTP: '1', ...environment }, 'command');
}

async function listen(t: TestContext, name: string | null, answer: RequestListener): Promise<number> {
  const server =
    name === null
      ? createServer(answer)
      : createTlsServer(
          { cert: readFileSync(file(`${name}.pem`)), key: readFileSync(file(`${name}.key`)) },
          answer,
        );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  return (server.address() as AddressInfo).port;
}

test('a base URL whose name does not exist is found, with the name', async () => {
  const report = await examine(networkProbes(configOf({ NUNCIO_BASE_URL: 'https://nobody.invalid' })));
  const found = find(report, 'base_url.dns');
  assert.equal(found.state, 'error');
  assert.match(found.summary, /^the name nobody\.invalid of NUNCIO_BASE_URL cannot be resolved \(E/);
  assert.equal(find(report, 'base_url').state, 'error');
});

test('another server at the base URL, a redirect and none at all are told apart', async (t) => {
  const port = await listen(t, null, (_request, response) =>
    response.writeHead(301, { location: '/' }).end(),
  );
  const other = await examine(networkProbes(configOf({ NUNCIO_BASE_URL: `http://localhost:${port}` })));
  assert.equal(find(other, 'base_url').state, 'error');
  assert.match(find(other, 'base_url').summary, /is not this server \(status 301\)$/);
  const nothing = await examine(
    networkProbes(configOf({ NUNCIO_BASE_URL: `http://localhost:${await freePort()}` })),
  );
  assert.equal(find(nothing, 'base_url').state, 'warning', 'nobody runs a server here yet');
  assert.equal(find(nothing, 'base_url').advice, 'Start the server.');
});

test('certificates that are expired or not trusted are found', async (t) => {
  const expired = await listen(t, 'expired', (_request, response) => response.end());
  const old = find(
    await examine(networkProbes(configOf({ NUNCIO_BASE_URL: `https://localhost:${expired}` }))),
    'base_url.tls',
  );
  assert.equal(old.state, 'error');
  assert.match(old.summary, /has expired$/);
  const own = await listen(t, 'self-signed', (_request, response) => response.end());
  const untrusted = find(
    await examine(networkProbes(configOf({ NUNCIO_BASE_URL: `https://localhost:${own}` }))),
    'base_url.tls',
  );
  assert.equal(untrusted.state, 'error');
  assert.match(untrusted.summary, /is not trusted \([A-Z_]+\)$/);
  assert.match(untrusted.advice ?? '', /NODE_EXTRA_CA_CERTS/);
  // The check of the base URL leaves the certificate to the other, and does not say that nothing responds.
  const asked = find(
    await examine(networkProbes(configOf({ NUNCIO_BASE_URL: `https://localhost:${own}` }))),
    'base_url',
  );
  assert.equal(asked.state, 'unknown');
  assert.match(asked.summary, /its certificate is refused/);
});

test('where nothing listens, only the check of the base URL finds it', async () => {
  const report = await examine(
    networkProbes(configOf({ NUNCIO_BASE_URL: `https://localhost:${await freePort()}` })),
  );
  assert.equal(find(report, 'base_url').state, 'warning');
  assert.equal(find(report, 'base_url.tls').state, 'unknown');
});

test('a proxy that reaches no node is found', async (t) => {
  const port = await listen(t, null, (_request, response) => response.writeHead(502).end());
  const report = await examine(networkProbes(configOf({ NUNCIO_BASE_URL: `http://localhost:${port}` })));
  const found = find(report, 'base_url');
  assert.equal(found.state, 'error');
  assert.match(found.summary, /reaches no node \(status 502\)$/);
  assert.match(found.advice ?? '', /^Start a node/);
});

test('certificate files that do not fit are found', async () => {
  const examined = async (cert: string, key: string) => {
    const files = { NUNCIO_TLS_CERT_FILE: file(cert), NUNCIO_TLS_KEY_FILE: file(key) };
    return find(
      await examine(networkProbes(configOf({ ...files, NUNCIO_BASE_URL: 'https://localhost:1' }))),
      'certificate',
    );
  };
  assert.equal((await examined('good.pem', 'good.key')).state, 'ok');
  assert.match((await examined('good.pem', 'rsa.key')).summary, /is not the key of/);
  assert.match((await examined('expired.pem', 'expired.key')).summary, /has expired$/);
  assert.match(
    (await examined('wrong-host.pem', 'wrong-host.key')).summary,
    /is not for localhost \(it is for/,
  );
  assert.match((await examined('missing.pem', 'good.key')).summary, /ENOENT/);
});

test('an egress proxy that is down, and TLS at a proxy that is not trusted, are found', async () => {
  const proxy = `http://127.0.0.1:${await freePort()}`;
  const report = await examine(
    networkProbes(configOf({ NUNCIO_BASE_URL: 'https://localhost:1', NUNCIO_EGRESS_PROXY: proxy })),
  );
  assert.match(find(report, 'egress_proxy').summary, /cannot be reached \(ECONNREFUSED\)$/);
  assert.match(find(report, 'egress_proxy').advice ?? '', /No webhook is sent/);
  assert.match(find(report, 'proxies').summary, /NUNCIO_TRUST_PROXY is not set: all clients share/);
  const set = configOf({ NUNCIO_BASE_URL: 'https://localhost:1', NUNCIO_TRUST_PROXY: '10.0.0.0/8' });
  assert.equal(find(await examine(networkProbes(set)), 'proxies').state, 'ok');
});

test('the headers of a request tell whether its proxy is trusted and names its clients', () => {
  const judge = (peer: string, headers: Record<string, string>, trusted = ['10.0.0.5']) =>
    checkForwarding({ peer, headers, trusted });
  assert.equal(judge('192.0.2.1', {}).state, 'ok');
  assert.equal(judge('::ffff:10.0.0.5', { 'x-forwarded-for': '192.0.2.1' }).state, 'ok');
  assert.match(judge('10.0.0.6', { 'x-forwarded-for': '192.0.2.1' }).advice ?? '', /add 10\.0\.0\.6 to/);
  assert.match(judge('10.0.0.5', {}).summary, /^the trusted proxy at 10\.0\.0\.5 sent no X-Forwarded-For$/);
  assert.match(judge('10.0.0.6', { via: '1.1 x' }).summary, /sent via, but no X-Forwarded-For/);
});

test('a real node’s event loop is read, and a blocked one is found', async (t) => {
  const server = await startTestServer(t);
  const text = await readLocalMetrics(server.config);
  assert.match(text ?? '', /nodejs_eventloop_lag_p99_seconds/);
  assert.equal(
    find(await examine(nodeProbes(async () => text)), 'node.open_files').values.limit,
    limitOf(text),
  );
  // A slow read takes many samples, among which one that was blocked is not the hundredth part. The next read begins anew.
  const readBlocked = async () => {
    const end = performance.now() + 1_500;
    while (performance.now() < end);
    await new Promise((resolve) => setTimeout(resolve, 50));
    return find(await examine(nodeProbes(() => readLocalMetrics(server.config))), 'node.event_loop');
  };
  const blocked = await until(readBlocked, ({ state }) => state === 'error');
  assert.match(blocked.advice ?? '', /add a node/);
  const without = { ...server.config, metricsToken: 'another token', port: await freePort() };
  const unseen = await examine(nodeProbes(() => readLocalMetrics(without)));
  assert.equal(find(unseen, 'node.event_loop').state, 'unknown');
});

function limitOf(text = ''): number {
  return Number(/^process_max_fds (\d+)$/m.exec(text)?.[1]);
}

test('the worst check decides the exit code, and a probe that fails is an error', async () => {
  const one = (state: Check['state']): Check => ({ name: 'a', state, summary: '', advice: null, values: {} });
  assert.equal(exitCodeOf(reportOf([])), 0);
  assert.equal(exitCodeOf(reportOf([one('ok'), one('notice'), one('unknown')])), 0);
  assert.equal(exitCodeOf(reportOf([one('warning'), one('ok')])), 1);
  assert.equal(exitCodeOf(reportOf([one('error'), one('warning')])), 2);
  const failing = async () => {
    throw Object.assign(new Error('no'), { code: 'EIO' });
  };
  const forbidden = async () => {
    throw Object.assign(new Error('permission denied'), { code: '42501' });
  };
  const { checks } = await examine([
    { name: 'failing', run: failing },
    { name: 'forbidden', run: forbidden },
  ]);
  assert.deepEqual(
    checks.map(({ name, state }) => [name, state]),
    [
      ['failing', 'error'],
      ['forbidden', 'unknown'],
    ],
  );
});
