/** TLS at the server itself, and client certificates presented to it directly (RFC 8705). */

import assert from 'node:assert/strict';
import { hash, X509Certificate } from 'node:crypto';
import { copyFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { connect, type SecureContextOptions } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { decodeJwt, exportJWK, importX509 } from 'jose';
import { Agent, type Dispatcher, request } from 'undici';
import { ConfigError, loadConfig } from '../../src/config/config.ts';
import { loadPlatform } from '../../src/platform.ts';
import { createTestClient } from '../support/clients/oauth.ts';
import {
  authorityCertificate,
  machineAuthorityCertificate,
  machineCertificate,
  machineKey,
  selfSignedCertificate,
  selfSignedKey,
  serverCertificate,
  serverKey,
} from '../support/network/certificates.ts';
import { temporaryFolder } from '../support/servers/process.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';

const folder = await temporaryFolder({ after });
const certFile = join(folder, 'server.pem');
const keyFile = join(folder, 'server.key');
const clientCaFile = join(folder, 'authorities.pem');
writeFileSync(certFile, serverCertificate);
writeFileSync(keyFile, serverKey);
writeFileSync(clientCaFile, machineAuthorityCertificate);

const files = { NUNCIO_TLS_CERT_FILE: certFile, NUNCIO_TLS_KEY_FILE: keyFile };

async function start(mtls: 'direct' | null, environment: object): Promise<TestServer> {
  const platform = await loadPlatform(null);
  return startTestServer({ after }, environment, 'dev', {
    ...platform,
    oauth: { ...platform.oauth, mtls },
  });
}

/** A client that presents the certificate, or none, on each connection. */
function asClient(shown?: { cert: string; key: string }): Agent {
  const agent = new Agent({ connect: { ca: authorityCertificate, ...shown } });
  after(() => agent.close());
  return agent;
}

const nobody = asClient();
const machine = asClient({ cert: machineCertificate, key: machineKey });
const selfSigned = asClient({ cert: selfSignedCertificate, key: selfSignedKey });

interface Answer {
  status: number;
  headers: Record<string, unknown>;
  body: Record<string, unknown>;
}

async function send(
  url: string,
  dispatcher: Dispatcher,
  options: { method?: 'GET' | 'POST'; headers?: Record<string, string>; body?: string } = {},
): Promise<Answer> {
  const { statusCode, headers, body } = await request(url, { dispatcher, ...options });
  return { status: statusCode, headers, body: (await body.json()) as Record<string, unknown> };
}

function askToken(server: TestServer, clientId: string, dispatcher: Dispatcher, headers = {}) {
  const form = { grant_type: 'client_credentials', scope: 'read:posts', client_id: clientId };
  return send(`${server.baseUrl}/oauth/token`, dispatcher, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded', ...headers },
    body: new URLSearchParams(form).toString(),
  });
}

const server = await start('direct', { ...files, NUNCIO_TLS_CLIENT_CA_FILE: clientCaFile });

test('the server speaks TLS with its certificate files and is its own https origin', async () => {
  assert.match(server.baseUrl, /^https:\/\/localhost:/);
  assert.match(server.running.address, /^https:/);
  const { status, body } = await send(`${server.baseUrl}/.well-known/oauth-authorization-server`, nobody);
  assert.equal(status, 200);
  assert.equal(body.issuer, server.baseUrl);
  assert.equal(body.token_endpoint, `${server.baseUrl}/oauth/token`);
  await assert.rejects(fetch(server.baseUrl.replace('https:', 'http:')));
});

test('oauth 84: a certificate issued by an authority authenticates on the connection that presented it', async () => {
  const client = await createTestClient(server, {
    authMethod: 'tls_client_auth',
    metadata: { tls_client_auth_san_dns: 'machine.example' },
  });
  const good = await askToken(server, client.id, machine);
  assert.equal(good.status, 200, JSON.stringify(good.body));
  for (const dispatcher of [nobody, selfSigned]) {
    const { status, body } = await askToken(server, client.id, dispatcher);
    assert.deepEqual([status, body.error], [401, 'invalid_client']);
  }
  // Certificate headers are ignored if the server terminates TLS itself.
  const raw = new X509Certificate(machineCertificate).raw.toString('base64');
  const forged = { 'client-cert': `:${raw}:`, 'x-client-verify': 'SUCCESS' };
  assert.equal((await askToken(server, client.id, nobody, forged)).status, 401);
});

test('oauth 84: a certificate registered by the client authenticates and binds its tokens', async () => {
  const jwk = await exportJWK(await importX509(selfSignedCertificate, 'ES256'));
  const { raw } = new X509Certificate(selfSignedCertificate);
  const client = await createTestClient(server, {
    authMethod: 'self_signed_tls_client_auth',
    metadata: {
      jwks: { keys: [{ ...jwk, x5c: [raw.toString('base64')] }] },
      tls_client_certificate_bound_access_tokens: true,
    },
  });
  const { status, body } = await askToken(server, client.id, selfSigned);
  assert.equal(status, 200, JSON.stringify(body));
  const token = String(body.access_token);
  assert.deepEqual(decodeJwt(token).cnf, { 'x5t#S256': hash('sha256', raw, 'base64url') });
  const headers = { authorization: `Bearer ${token}` };
  assert.equal((await send(`${server.baseUrl}/api`, selfSigned, { headers })).status, 200);
  for (const dispatcher of [nobody, machine]) {
    assert.equal((await send(`${server.baseUrl}/api`, dispatcher, { headers })).status, 401);
  }
  assert.equal((await askToken(server, client.id, machine)).status, 401);
});

test('no certificate counts as issued without configured authorities', async () => {
  const strict = await start('direct', files);
  const { body } = await send(`${strict.baseUrl}/.well-known/oauth-authorization-server`, nobody);
  const methods = body.token_endpoint_auth_methods_supported as string[];
  assert.ok(methods.includes('self_signed_tls_client_auth'));
  assert.ok(!methods.includes('tls_client_auth'));
});

test('a server that needs no certificates requests none', async () => {
  const plain = await start(null, files);
  const { body } = await send(`${plain.baseUrl}/.well-known/oauth-authorization-server`, machine);
  assert.ok(!JSON.stringify(body).includes('tls_client'));
});

test('a renewed certificate is used without a restart, and a broken one is not', async () => {
  const [cert, key] = [join(folder, 'renewed.pem'), join(folder, 'renewed.key')];
  copyFileSync(certFile, cert);
  copyFileSync(keyFile, key);
  const renewed = await start(null, { NUNCIO_TLS_CERT_FILE: cert, NUNCIO_TLS_KEY_FILE: key });
  assert.equal(await shownName(renewed), 'apps.example');
  writeFileSync(cert, 'no certificate');
  process.emit('SIGHUP', 'SIGHUP');
  assert.equal(await shownName(renewed), 'apps.example');
  writeFileSync(key, selfSignedKey);
  writeFileSync(cert, selfSignedCertificate);
  process.emit('SIGHUP', 'SIGHUP');
  assert.equal(await shownName(renewed), 'self-signed.example');
});

/** The common name of the server's certificate on a new connection. */
function shownName({ config }: TestServer): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port: config.port, host: '127.0.0.1', rejectUnauthorized: false }, () => {
      resolve(String(socket.getPeerCertificate().subject.CN));
      socket.end();
    });
    socket.on('error', reject);
  });
}

/** Performs a handshake with only these options. @returns the name of the suite, or the alert */
function handshake({ config }: TestServer, offered: SecureContextOptions): Promise<string> {
  return new Promise((resolve) => {
    const options = { port: config.port, host: '127.0.0.1', rejectUnauthorized: false, ...offered };
    const socket = connect(options, () => {
      resolve(socket.getCipher().name);
      socket.end();
    });
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
  });
}

test('TLS 1.2 uses only ECDHE with authenticated encryption for any key, and TLS 1.3 is unchanged', async () => {
  const certificates = new URL('../support/network/certificates/', import.meta.url);
  const withRsa = await start(null, {
    NUNCIO_TLS_CERT_FILE: fileURLToPath(new URL('rsa.pem', certificates)),
    NUNCIO_TLS_KEY_FILE: fileURLToPath(new URL('rsa.key', certificates)),
  });
  const refused = /^(?:ERR_SSL_SSL\/TLS_ALERT_HANDSHAKE_FAILURE|ERR_SSL_SSLV3_ALERT_HANDSHAKE_FAILURE)$/;
  const old = (ciphers: string): SecureContextOptions => ({
    maxVersion: 'TLSv1.2',
    ciphers: `${ciphers}:@SECLEVEL=0`,
  });
  const families: [TestServer, string][] = [
    [withRsa, 'AES128-GCM-SHA256'],
    [withRsa, 'AES256-GCM-SHA384'],
    [withRsa, 'AES128-SHA'],
    [withRsa, 'AES256-SHA256'],
    [withRsa, 'AES128-CCM'],
    [withRsa, 'ECDHE-RSA-AES128-SHA'],
    [withRsa, 'ECDHE-RSA-AES128-SHA256'],
    [withRsa, 'ECDHE-RSA-AES256-SHA384'],
    [withRsa, 'DHE-RSA-AES128-GCM-SHA256'],
    [withRsa, 'DHE-RSA-AES128-SHA'],
    [withRsa, 'AECDH-AES128-SHA'],
    [withRsa, 'NULL-SHA256'],
    [server, 'ECDHE-ECDSA-AES128-SHA'],
    [server, 'ECDHE-ECDSA-AES128-SHA256'],
    [server, 'ECDHE-ECDSA-AES256-SHA384'],
  ];
  for (const [place, suite] of families) assert.match(await handshake(place, old(suite)), refused, suite);
  for (const suite of [
    'ECDHE-RSA-AES128-GCM-SHA256',
    'ECDHE-RSA-AES256-GCM-SHA384',
    'ECDHE-RSA-CHACHA20-POLY1305',
  ]) {
    assert.equal(await handshake(withRsa, old(suite)), suite);
  }
  assert.equal(
    await handshake(server, old('ECDHE-ECDSA-AES128-GCM-SHA256')),
    'ECDHE-ECDSA-AES128-GCM-SHA256',
  );
  for (const suite of ['TLS_AES_128_GCM_SHA256', 'TLS_AES_256_GCM_SHA384', 'TLS_CHACHA20_POLY1305_SHA256']) {
    assert.equal(await handshake(withRsa, { minVersion: 'TLSv1.3', ciphers: suite }), suite);
  }
  const older = { minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'ALL:@SECLEVEL=0' } as const;
  assert.match(await handshake(withRsa, older), /VERSION|^ERR_SSL/);
  for (const group of ['X25519', 'P-256', 'P-384'])
    assert.equal(
      await handshake(withRsa, { minVersion: 'TLSv1.3', ecdhCurve: group }),
      'TLS_AES_256_GCM_SHA384',
      group,
    );
  // Slow groups would be the client's choice.
  for (const group of ['P-521', 'X448', 'ffdhe8192'])
    assert.match(
      await handshake(withRsa, { minVersion: 'TLSv1.3', ecdhCurve: group }),
      /HANDSHAKE_FAILURE/,
      group,
    );
  // Reloading the certificate does not enable the other suites.
  process.emit('SIGHUP', 'SIGHUP');
  assert.match(await handshake(withRsa, old('AES128-GCM-SHA256')), refused);
  assert.match(await handshake(withRsa, old('ECDHE-RSA-AES128-SHA')), refused);
});

test('an https origin sends HSTS, and one on loopback does not', async (t) => {
  const secure = await startTestServer(t, { NUNCIO_BASE_URL: 'https://auth.example' });
  const value = 'max-age=31536000';
  const paths = [
    '/',
    '/docs',
    '/livez',
    '/articles',
    '/none',
    '/oauth/authorize',
    '/oauth/jwks',
    '/interaction/x',
  ];
  for (const path of [...paths, '/.well-known/openid-configuration']) {
    const { headers } = await fetch(`${secure.running.address}${path}`, { redirect: 'manual' });
    assert.equal(headers.get('strict-transport-security'), value, path);
  }
  for (const path of ['/oauth/token', '/oauth/register', '/oauth/introspect', '/events', '/account']) {
    const { headers } = await fetch(`${secure.running.address}${path}`, { method: 'POST' });
    assert.equal(headers.get('strict-transport-security'), value, path);
  }
  const { headers } = await send(`${server.baseUrl}/.well-known/oauth-authorization-server`, nobody);
  assert.equal(headers['strict-transport-security'], undefined);
});

test('start-up fails when the files are invalid or conflict', async () => {
  const problemsOf = (environment: object) => {
    try {
      loadConfig(environment, 'start');
      return [];
    } catch (error) {
      return (error as ConfigError).problems;
    }
  };
  assert.match(problemsOf({ NUNCIO_TLS_CERT_FILE: certFile }).join(), /^NUNCIO_TLS_KEY_FILE is not set/);
  assert.match(problemsOf({ NUNCIO_TLS_KEY_FILE: keyFile }).join(), /^NUNCIO_TLS_CERT_FILE is not set/);
  assert.equal(problemsOf({ NUNCIO_TLS_CLIENT_CA_FILE: clientCaFile }).length, 2);
  assert.match(
    problemsOf({ ...files, NUNCIO_BASE_URL: 'http://a.example' }).join(),
    /NUNCIO_BASE_URL.*https origin/,
  );
  assert.equal(loadConfig({ ...files, PORT: '8443' }, 'start').baseUrl, 'https://localhost:8443');
  const starting = (mtls: 'direct' | null, environment: object) => start(mtls, environment);
  await assert.rejects(starting('direct', {}), /NUNCIO_TLS_CERT_FILE is not set/);
  await assert.rejects(
    starting(null, { ...files, NUNCIO_TLS_KEY_FILE: join(folder, 'none') }),
    (error) => error instanceof ConfigError && /NUNCIO_TLS_KEY_FILE is .*can read/.test(error.message),
  );
  const otherKey = join(folder, 'other.key');
  writeFileSync(otherKey, selfSignedKey);
  await assert.rejects(
    starting(null, { ...files, NUNCIO_TLS_KEY_FILE: otherKey }),
    /NUNCIO_TLS_KEY_FILE is .*the key of the certificate/,
  );
});
