/**
 * The nginx configuration of docs/operations.md in a real nginx, in front of two nodes. Skipped if nginx is not installed
 * (Debian: nginx-light).
 */

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { consoleClientId } from '../../src/clients/own_clients.ts';
import { loadConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/database/database.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { createDatabase } from '../support/database/database.ts';
import { authorityCertificate, serverCertificate, serverKey } from '../support/network/certificates.ts';
import { type NuncioProcess, startProcess } from '../support/servers/process.ts';
import { freePort, testSecret } from '../support/servers/server.ts';
import { createPublisher, publish, until } from '../support/webhooks/apps.ts';

const program = '/usr/sbin/nginx';
const skip = existsSync(program) ? false : 'nginx is not installed';
const scopes = ['read:posts', 'read:webhooks', 'write:webhooks'];

if (skip !== false)
  test('nginx passes requests to two nodes as docs/operations.md configures it', { skip }, () => {});
else await withNginx();

async function withNginx(): Promise<void> {
  const [httpPort, httpsPort, portA, portB] = [
    await freePort(),
    await freePort(),
    await freePort(),
    await freePort(),
  ].map(String) as [string, string, string, string];
  const [nodeA, nodeB, server] = await startNodes(`https://localhost:${httpsPort}`, portA, portB);
  const folder = await startNginx({ httpPort, httpsPort, portA, portB });
  const get = (path: string, headers: Record<string, string> = {}): Promise<IncomingMessage> =>
    new Promise((resolve, reject) => {
      const options = { port: httpsPort, path, headers, ca: authorityCertificate, localAddress: '127.0.0.2' };
      request({ host: '127.0.0.1', servername: 'localhost', ...options }, resolve)
        .on('error', reject)
        .end();
    });
  const statusOf = async (path: string) => {
    const response = await get(path);
    response.resume();
    return response.statusCode;
  };
  await until(
    () => statusOf('/livez').catch(() => 0),
    (status) => status === 200,
  );

  test('nginx -t accepts the configuration without a warning', async () => {
    const { stderr } = await promisify(execFile)(program, ['-t', '-c', join(folder, 'nginx.conf')]);
    assert.doesNotMatch(stderr, /\[warn\]|\[emerg\]/);
    assert.match(stderr, /test is successful/);
  });

  test('both nodes serve the issuer’s documents behind nginx, and http is redirected', async () => {
    const { issuer } = JSON.parse(await text(await get('/.well-known/openid-configuration')));
    assert.equal(issuer, `https://localhost:${httpsPort}`);
    const plain = await fetch(`http://127.0.0.1:${httpPort}/docs?a=b`, { redirect: 'manual' });
    assert.deepEqual([plain.status, plain.headers.get('location')], [301, 'https://id.example.com/docs?a=b']);
  });

  test('nginx passes no form of /metrics on', async () => {
    for (const path of ['/metrics', '/%6detrics', '//metrics', '/x/../metrics', '/metrics?x']) {
      assert.equal(await statusOf(path), 404, path);
    }
    assert.doesNotMatch(nodeA.output() + nodeB.output(), /"route":"\/metrics"/);
  });

  test('the nodes see the client’s address and not one that it sends', async () => {
    await statusOf('/api');
    const response = await get('/api', { 'x-forwarded-for': '203.0.113.9', forwarded: 'for=203.0.113.9' });
    response.resume();
    await until(
      async () => nodeA.output() + nodeB.output(),
      (output) => (output.match(/"path":"\/api".*"remote":"127\.0\.0\.2"/g)?.length ?? 0) >= 2,
    );
    assert.doesNotMatch(nodeA.output() + nodeB.output(), /203\.0\.113\.9/);
  });

  test('a live log’s events pass nginx as they happen', async (t) => {
    const account = await createTestAccount(server);
    const client = await createTestClient(server, { scopes });
    const { accessToken } = await mintAccessToken(server, { account, client, scopes });
    const { body: subscription } = await requester(server, accessToken)('POST', '/subscriptions', {
      json: { url: 'http://127.0.0.1:20009/hooks', kinds: ['push'] },
    });
    const stream = await get(`/subscriptions/${subscription.id}/deliveries`, {
      authorization: `Bearer ${accessToken}`,
      accept: 'text/event-stream',
    });
    t.after(async () => {
      stream.destroy();
    });
    assert.equal(stream.statusCode, 200);
    let received = '';
    stream.setEncoding('utf8').on('data', (part: string) => {
      received += part;
    });
    await publish(await createPublisher(server), account, ['live']);
    await until(
      async () => received,
      (events) => events.includes('event: delivery'),
    );
    assert.equal(stream.complete, false);
    assert.doesNotMatch(received, /^: keep-alive/, 'the head came before the first event');
  });

  test('pulled events pass nginx as they happen, and a waiting request is answered', async (t) => {
    const account = await createTestAccount(server);
    const client = await createTestClient(server, { scopes });
    const { accessToken } = await mintAccessToken(server, { account, client, scopes });
    const { body: subscription } = await requester(server, accessToken)('POST', '/subscriptions', {
      json: { url: null, kinds: ['push'] },
    });
    const path = `/subscriptions/${subscription.id}/events`;
    const authorization = `Bearer ${accessToken}`;
    const stream = await get(path, { authorization, accept: 'text/event-stream' });
    t.after(async () => {
      stream.destroy();
    });
    let received = '';
    stream.setEncoding('utf8').on('data', (part: string) => {
      received += part;
    });
    const waiting = get(`${path}?wait=60`, { authorization });
    await publish(await createPublisher(server), account, ['pulled']);
    const { items } = JSON.parse(await text(await waiting));
    assert.deepEqual([items.length, items[0].sequence], [1, 1]);
    await until(
      async () => received,
      (events) => events.includes('refs/heads/pulled'),
    );
    assert.equal(stream.complete, false);
  });

  /** Failures of nodes, as nginx sees them. */
  const failures = async () =>
    (await readFile(join(folder, 'error.log'), 'utf8')).match(/\[error\].*upstream/g)?.length ?? 0;

  test('attack: redirects with a long state do not make nginx believe that the nodes have failed', async () => {
    const before = await failures();
    for (const length of [4_000, 4_000, 7_000, 7_000]) {
      const parameters = new URLSearchParams({
        client_id: consoleClientId,
        redirect_uri: `https://localhost:${httpsPort}/console/callback`,
        response_type: 'code',
        scope: 'read:apps',
        prompt: 'none',
        state: 's'.repeat(length),
        ...{ code_challenge: 'c'.repeat(43), code_challenge_method: 'S256' },
      });
      const response = await get(`/oauth/authorize?${parameters}`);
      response.resume();
      assert.equal(response.statusCode, 302);
      assert.match(String(response.headers.location), /error=login_required/);
    }
    assert.equal(await failures(), before);
    assert.equal(await statusOf('/livez'), 200);
  });

  test('attack: bodies that are refused before they have arrived do not, either', async () => {
    const before = await failures();
    const body = Buffer.alloc(15_000_000, ' ');
    for (let count = 0; count < 10; count += 1) {
      const status = await new Promise((resolve, reject) => {
        const options = { port: httpsPort, path: '/events', method: 'POST', ca: authorityCertificate };
        request(
          {
            ...{ host: '127.0.0.1', servername: 'localhost', ...options },
            headers: { 'content-type': 'application/json', 'content-length': body.length },
          },
          (response) => resolve(response.resume().statusCode),
        )
          .on('error', reject)
          .end(body);
      });
      assert.equal(status, 401);
    }
    assert.equal(await failures(), before);
    assert.equal(await statusOf('/livez'), 200);
  });

  test('attack: bodies that are refused while they arrive do not, nor do they keep others from a node', async () => {
    const before = await failures();
    const manyFields = Object.fromEntries(Array.from({ length: 110 }, (_none, index) => [`x-${index}`, 'y']));
    const post = (path: string, headers: Record<string, string>) =>
      new Promise((resolve, reject) => {
        const options = { port: httpsPort, path, method: 'POST', ca: authorityCertificate, headers };
        request({ host: '127.0.0.1', servername: 'localhost', ...options }, (response) =>
          response.resume().once('end', () => resolve(response.statusCode)),
        )
          .on('error', reject)
          .end(Buffer.alloc(900_000, ' '));
      });
    for (let round = 0; round < 10; round += 1) {
      const form = { 'content-type': 'application/x-www-form-urlencoded' };
      const statuses = await Promise.all([
        post('/oauth/token', form),
        post('/oauth/authorize', { ...form, 'transfer-encoding': 'chunked' }),
        post('/device', form),
        post('/livez', manyFields),
        post('/api', form),
      ]);
      assert.deepEqual(statuses, [413, 413, 413, 431, 405]);
      assert.deepEqual(await Promise.all([statusOf('/livez'), statusOf('/livez')]), [200, 200]);
    }
    assert.equal(await failures(), before);
  });

  test('no request fails when one of the nodes stops', async () => {
    assert.equal(await nodeA.end('SIGTERM'), 0);
    const statuses = await Promise.all(Array.from({ length: 20 }, () => statusOf('/livez')));
    assert.deepEqual(new Set(statuses), new Set([200]));
  });
}

async function startNodes(baseUrl: string, portA: string, portB: string) {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
  const settings = {
    NUNCIO_BASE_URL: baseUrl,
    HOST: '127.0.0.1',
    DATABASE_URL: database.url,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_CONFIG: fileURLToPath(new URL('../../nuncio.config.ts', import.meta.url)),
    NUNCIO_TRUST_PROXY: '127.0.0.1',
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    LOG_LEVEL: 'info',
  };
  const nodes: NuncioProcess[] = [];
  for (const port of [portA, portB]) {
    nodes.push(startProcess({ after }, ['start'], { ...settings, PORT: port }));
    await until(
      async () => (await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => undefined))?.status,
      (status) => status === 200,
    );
  }
  after(async () => {
    await db.destroy();
    await database.drop();
  });
  const config = loadConfig({ ...settings, PORT: portB }, 'start');
  const server = { db, config, baseUrl: `http://127.0.0.1:${portB}`, databaseUrl: database.url };
  return [...nodes, server] as unknown as [NuncioProcess, NuncioProcess, typeof server];
}

/** Runs nginx with the block of the page; only addresses and paths differ. @returns its folder */
async function startNginx(
  ports: Record<'httpPort' | 'httpsPort' | 'portA' | 'portB', string>,
): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-nginx-'));
  after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  // If this process is root, the workers run as another user.
  await chmod(folder, 0o755);
  const page = await readFile(new URL('../../docs/operations.md', import.meta.url), 'utf8');
  const [, block = ''] = /^```nginx\n([\s\S]*?)^```$/m.exec(page) ?? [];
  const site = block
    .replace('10.0.0.11:3000', `127.0.0.1:${ports.portA}`)
    .replace('10.0.0.12:3000', `127.0.0.1:${ports.portB}`)
    .replace('listen 80;', `listen 127.0.0.1:${ports.httpPort};`)
    .replace('listen 443 ssl', `listen 127.0.0.1:${ports.httpsPort} ssl`)
    .replaceAll('/etc/nginx/nuncio/', `${folder}/`);
  const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
  const main = [
    `pid ${folder}/nginx.pid;`,
    `error_log ${folder}/error.log warn;`,
    'events {}',
    `http { access_log off; ${kinds.map((kind) => `${kind}_temp_path ${folder}/${kind};`).join(' ')}`,
    `include ${folder}/nuncio.conf; }`,
  ];
  await writeFile(join(folder, 'nuncio.conf'), site);
  await writeFile(join(folder, 'nginx.conf'), main.join('\n'));
  await writeFile(join(folder, 'certificate.pem'), serverCertificate);
  await writeFile(join(folder, 'key.pem'), serverKey);
  const child = spawn(program, ['-c', join(folder, 'nginx.conf'), '-g', 'daemon off;'], { stdio: 'inherit' });
  const ended = once(child, 'exit');
  after(async () => {
    child.kill('SIGTERM');
    await ended;
  });
  return folder;
}
