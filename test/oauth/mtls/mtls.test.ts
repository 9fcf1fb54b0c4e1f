/** Mutual TLS (RFC 8705) behind a reverse proxy: client authentication and certificate-bound tokens. */

import assert from 'node:assert/strict';
import { createHash, X509Certificate } from 'node:crypto';
import { after, test } from 'node:test';
import { decodeJwt, exportJWK, importX509 } from 'jose';
import { clientCreate } from '../../../src/commands/client_create.ts';
import { parseCertificateHeader } from '../../../src/oauth/mtls/certificate_header.ts';
import { certificateMatches } from '../../../src/oauth/mtls/certificate_subject.ts';
import { createPlatform, loadPlatform } from '../../../src/platform.ts';
import {
  authorize,
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
  type TestClient,
} from '../../support/clients/oauth.ts';
import { machineCertificate, selfSignedCertificate } from '../../support/network/certificates.ts';
import { timesAsMuch } from '../../support/processor_time.ts';
import { startTestServer, type TestServer } from '../../support/servers/server.ts';

const mtls = { certificateHeader: 'client-cert', verifiedHeader: 'x-client-verify' };

async function start(trustProxy: string, settings: typeof mtls | null = mtls): Promise<TestServer> {
  const platform = await loadPlatform(null);
  const oauth = { ...platform.oauth, mtls: settings };
  return startTestServer({ after }, { NUNCIO_TRUST_PROXY: trustProxy }, 'dev', { ...platform, oauth });
}

const server = await start('127.0.0.1,::1');
const account = await createTestAccount(server);

/** The proxy's headers: the certificate (RFC 9440) and the result of its verification. */
function shown(pem: string, verified?: string): Record<string, string> {
  const { raw } = new X509Certificate(pem);
  return {
    'client-cert': `:${raw.toString('base64')}:`,
    ...(verified === undefined ? {} : { 'x-client-verify': verified }),
  };
}

function thumbprint(pem: string): string {
  return createHash('sha256').update(new X509Certificate(pem).raw).digest('base64url');
}

const form = { grant_type: 'client_credentials', scope: 'read:posts' };

function ask(client: TestClient, headers: Record<string, string>, at = server) {
  return postForm(at, '/oauth/token', null, { ...form, client_id: client.id }, headers);
}

function api(token: unknown, headers: Record<string, string> = {}, at = server) {
  return fetch(`${at.baseUrl}/api`, { headers: { authorization: `Bearer ${token}`, ...headers } });
}

async function selfSigned(pem: string, at = server): Promise<TestClient> {
  const jwk = await exportJWK(await importX509(pem, 'ES256'));
  const x5c = [new X509Certificate(pem).raw.toString('base64')];
  return createTestClient(at, {
    authMethod: 'self_signed_tls_client_auth',
    metadata: { jwks: { keys: [{ ...jwk, x5c }] }, tls_client_certificate_bound_access_tokens: true },
  });
}

for (const [property, value, wrong] of [
  [
    'tls_client_auth_subject_dn',
    'CN=machine.example,OU=Machines,O=Example Org,C=DE',
    'CN=machine.example,O=Example Org,C=DE',
  ],
  ['tls_client_auth_san_dns', 'machine.example', 'machine.example.com'],
  ['tls_client_auth_san_uri', 'https://machine.example/id', 'https://machine.example/'],
  ['tls_client_auth_san_ip', '192.0.2.7', '192.0.2.70'],
  ['tls_client_auth_san_email', 'machine@machine.example', 'achine@machine.example'],
] as const) {
  test(`oauth 84: a verified certificate authenticates by ${property}, and no other subject does`, async () => {
    const client = await createTestClient(server, {
      authMethod: 'tls_client_auth',
      metadata: { [property]: value },
    });
    const good = await ask(client, shown(machineCertificate, 'SUCCESS'));
    assert.equal(good.status, 200, JSON.stringify(good.body));
    const other = await createTestClient(server, {
      authMethod: 'tls_client_auth',
      metadata: { [property]: wrong },
    });
    const bad = await ask(other, shown(machineCertificate, 'SUCCESS'));
    assert.deepEqual([bad.status, bad.body.error], [401, 'invalid_client']);
  });
}

test('a FAPI 2.0 client authenticates by its certificate alone and gets bound tokens', async () => {
  const lines: string[] = [];
  await clientCreate.run(
    {
      values: {
        fapi2: true,
        name: 'Bank',
        'auth-method': 'tls_client_auth',
        grant: ['client_credentials'],
        metadata: JSON.stringify({
          tls_client_auth_san_dns: 'machine.example',
          tls_client_certificate_bound_access_tokens: true,
        }),
        json: true,
      },
      positionals: [],
    },
    {
      config: { ...server.config, databaseUrl: server.databaseUrl },
      print: (line) => lines.push(line),
      printError: () => {},
    },
  );
  const { client_id } = JSON.parse(lines.join('')) as { client_id: string };
  const machine = { ...form, client_id };
  const good = await postForm(server, '/oauth/token', null, machine, shown(machineCertificate, 'SUCCESS'));
  assert.equal(good.status, 200, JSON.stringify(good.body));
  const { cnf } = decodeJwt(String(good.body.access_token)) as { cnf?: Record<string, string> };
  assert.deepEqual(cnf, { 'x5t#S256': thumbprint(machineCertificate) });
  const bare = await postForm(server, '/oauth/token', null, machine);
  assert.equal(bare.body.error, 'invalid_client');
});

test('oauth 84: a missing or unverified certificate is 401 invalid_client', async () => {
  const client = await createTestClient(server, {
    authMethod: 'tls_client_auth',
    metadata: { tls_client_auth_san_dns: 'machine.example' },
  });
  const { 'client-cert': certificate } = shown(machineCertificate) as { 'client-cert': string };
  for (const headers of [
    {},
    { 'x-client-verify': 'SUCCESS' },
    shown(machineCertificate),
    shown(machineCertificate, 'FAILED:self-signed certificate'),
    shown(machineCertificate, 'success'),
    shown(selfSignedCertificate, 'SUCCESS'),
    { 'client-cert': 'garbage', 'x-client-verify': 'SUCCESS' },
    { 'client-cert': `${certificate}, ${certificate}`, 'x-client-verify': 'SUCCESS' },
  ]) {
    const { status, body } = await ask(client, headers);
    assert.deepEqual([status, body.error], [401, 'invalid_client'], JSON.stringify(headers).slice(0, 60));
  }
});

test('oauth 84: a self-signed certificate authenticates when it is registered', async () => {
  const client = await selfSigned(selfSignedCertificate);
  const good = await ask(client, shown(selfSignedCertificate));
  assert.equal(good.status, 200, JSON.stringify(good.body));
  for (const headers of [{}, shown(machineCertificate, 'SUCCESS')]) {
    const { status, body } = await ask(client, headers);
    assert.deepEqual([status, body.error], [401, 'invalid_client']);
  }
});

test('oauth 84: a bound token opens the API only with its certificate', async () => {
  const client = await selfSigned(selfSignedCertificate);
  const { body } = await ask(client, shown(selfSignedCertificate));
  const token = String(body.access_token);
  assert.deepEqual(decodeJwt(token).cnf, { 'x5t#S256': thumbprint(selfSignedCertificate) });
  assert.equal((await api(token, shown(selfSignedCertificate))).status, 200);
  for (const headers of [{}, shown(machineCertificate, 'SUCCESS'), { 'client-cert': 'garbage' }]) {
    const refused = await api(token, headers);
    assert.equal(refused.status, 401);
    assert.match(refused.headers.get('www-authenticate') ?? '', /^Bearer error="invalid_token"/);
  }
  const introspected = await postForm(
    server,
    '/oauth/introspect',
    null,
    { token, client_id: client.id },
    shown(selfSignedCertificate),
  );
  assert.deepEqual(introspected.body.cnf, { 'x5t#S256': thumbprint(selfSignedCertificate) });
});

test('oauth 84: a client that must bind its tokens gets none without a certificate', async () => {
  const client = await createTestClient(server, {
    metadata: { tls_client_certificate_bound_access_tokens: true },
  });
  const none = await postForm(server, '/oauth/token', client, form);
  assert.equal(none.status, 400);
  assert.equal(none.body.access_token, undefined);
  const bound = await postForm(server, '/oauth/token', client, form, shown(selfSignedCertificate));
  assert.equal(bound.status, 200);
});

test('oauth 84: a user’s tokens are bound by code and refresh, and userinfo requires the certificate', async () => {
  const client = await createTestClient(server, {
    authMethod: 'none',
    grantTypes: ['authorization_code', 'refresh_token'],
    metadata: { tls_client_certificate_bound_access_tokens: true },
  });
  const headers = shown(selfSignedCertificate);
  const { code, verifier } = await obtainCode(server, { account, client, scopes: ['openid', 'read:posts'] });
  const exchange = {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  };
  const first = await postForm(server, '/oauth/token', client, exchange, headers);
  assert.equal(first.status, 200, JSON.stringify(first.body));
  const userinfo = (more: Record<string, string>) =>
    fetch(`${server.baseUrl}/oauth/userinfo`, {
      headers: { authorization: `Bearer ${first.body.access_token}`, ...more },
    });
  assert.equal((await userinfo(headers)).status, 200);
  assert.equal((await userinfo({})).status, 401);
  assert.equal((await userinfo(shown(machineCertificate))).status, 401);
  // The refresh token of a public client is bound, too.
  const refresh = { grant_type: 'refresh_token', refresh_token: String(first.body.refresh_token) };
  const stolen = await postForm(server, '/oauth/token', client, refresh, shown(machineCertificate));
  assert.deepEqual([stolen.status, stolen.body.error], [400, 'invalid_grant']);
  const second = await postForm(server, '/oauth/token', client, refresh, headers);
  assert.equal(second.status, 200);
  assert.deepEqual(decodeJwt(String(second.body.access_token)).cnf, {
    'x5t#S256': thumbprint(selfSignedCertificate),
  });
});

test('oauth 84: the certificate header is ignored when it does not come from the proxy', async () => {
  const direct = await start('10.0.0.0/8');
  const client = await selfSigned(selfSignedCertificate, direct);
  // A forwarded address does not make the peer a trusted proxy.
  for (const more of [{}, { 'x-forwarded-for': '10.0.0.1' }, { forwarded: 'for=10.0.0.1' }]) {
    const { status, body } = await ask(client, { ...shown(selfSignedCertificate), ...more }, direct);
    assert.deepEqual([status, body.error], [401, 'invalid_client']);
  }
});

test('undeclared certificates are not offered, and start-up fails without a proxy', async () => {
  const plain = await start('127.0.0.1', null);
  const read = async (at: TestServer) =>
    (await (await fetch(`${at.baseUrl}/.well-known/oauth-authorization-server`)).json()) as Record<
      string,
      unknown
    >;
  const without = await read(plain);
  assert.ok(!JSON.stringify(without).includes('tls_client'));
  const offered = await read(server);
  assert.equal(offered.tls_client_certificate_bound_access_tokens, true);
  const methods = offered.token_endpoint_auth_methods_supported as string[];
  assert.ok(methods.includes('tls_client_auth') && methods.includes('self_signed_tls_client_auth'));
  const platform = await loadPlatform(null);
  const oauth = { ...platform.oauth, mtls };
  await assert.rejects(
    startTestServer({ after: () => {} }, {}, 'dev', { ...platform, oauth }),
    /NUNCIO_TRUST_PROXY/,
  );
  assert.throws(
    () => createPlatform({ oauth: { mtls: { certificateHeader: 'X Cert' } as never } }),
    /oauth\.mtls/,
  );
});

test('without its header no certificate counts as issued by an authority', async () => {
  const strict = await start('127.0.0.1', { ...mtls, verifiedHeader: null as never });
  const response = await fetch(`${strict.baseUrl}/.well-known/oauth-authorization-server`);
  const { token_endpoint_auth_methods_supported: methods } = (await response.json()) as Record<
    string,
    string[]
  >;
  assert.ok(methods?.includes('self_signed_tls_client_auth'));
  assert.ok(!methods?.includes('tls_client_auth'));
});

test('the header is read in RFC 9440 format and as nginx sends it, and in no other', () => {
  const { raw, fingerprint256 } = new X509Certificate(machineCertificate);
  const base64 = raw.toString('base64');
  for (const good of [
    `:${base64}:`,
    encodeURIComponent(machineCertificate),
    encodeURIComponent(`${machineCertificate}\n`),
  ]) {
    assert.equal(parseCertificateHeader(good)?.fingerprint256, fingerprint256);
  }
  const two = `${machineCertificate}\n${selfSignedCertificate}`;
  for (const bad of [
    '',
    base64,
    `:${base64}`,
    `:${base64}:, :${base64}:`,
    '%',
    encodeURIComponent(two),
    `:${'A'.repeat(20_000)}:`,
  ]) {
    assert.equal(parseCertificateHeader(bad), null);
  }
});

test('subject names are compared part by part in any string type', () => {
  const named = (subject: string, subjectAltName = '') => ({ subject, subjectAltName });
  const dn = (subject: string, expected: string) =>
    certificateMatches(named(subject), 'tls_client_auth_subject_dn', expected);
  assert.ok(dn('O=A\\, B\nCN=x', 'CN=x,O=A\\, B'));
  assert.ok(dn('O=A\\, B\nCN=x', 'cn = x, o = A\\2C B'));
  assert.ok(dn('CN=Zoë', 'CN=Zo\\C3\\AB'));
  assert.ok(dn('CN=a\\\\2Cb', 'CN=a\\\\2Cb'));
  assert.ok(!dn('CN=a\\\\2Cb', 'CN=a\\,b'));
  for (const expected of ['', 'CN=x', 'O=A,CN=x', 'CN=x,O=A,', 'CN=X,O=A', 'CN=x+O=A']) {
    assert.ok(!dn('O=A\nCN=x', expected), expected);
  }
  const san = (names: string, expected: string) =>
    certificateMatches(named('', names), 'tls_client_auth_san_dns', expected);
  assert.ok(san('DNS:a.example, DNS:B.example', 'b.Example'));
  // A name that contains the text form of another name is quoted, and does not match it.
  assert.ok(!san('DNS:"a.example, DNS:b.example"', 'b.example'));
  assert.ok(!san('URI:b.example', 'b.example'));
  const ip = (names: string, expected: string) =>
    certificateMatches(named('', names), 'tls_client_auth_san_ip', expected);
  assert.ok(ip('IP Address:2001:DB8:0:0:0:0:0:1', '2001:db8::1'));
});

test('attack: a registered subject with thousands of spaces is compared quickly', async () => {
  const dn = (expected: string) =>
    certificateMatches({ subject: 'CN=x', subjectAltName: '' }, 'tls_client_auth_subject_dn', expected);
  const spaces = ' '.repeat(2_000);
  assert.ok(dn(`${spaces}CN${spaces}=${spaces}x${spaces}`));
  const compare = (fillers: string) => () => {
    for (const expected of [
      `CN=${fillers}+`,
      `CN=x${fillers}+`,
      `${fillers}+`,
      `CN=x${fillers}\\${fillers}+`,
    ])
      assert.ok(!dn(expected));
  };
  // With patterns for the spaces, some thousand times as much as letters.
  const ratio = await timesAsMuch(compare(spaces), compare('y'.repeat(2_000)));
  assert.ok(ratio < 50, String(ratio));
  const escaped = { subject: 'CN=x ', subjectAltName: '' };
  assert.ok(certificateMatches(escaped, 'tls_client_auth_subject_dn', 'CN=x\\ '));
  assert.ok(!certificateMatches(escaped, 'tls_client_auth_subject_dn', 'CN=x '));
});

test('an unbound token needs no certificate', async () => {
  const client = await createTestClient(server);
  const { accessToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  // An unbound token needs no certificate, and a presented one is ignored.
  assert.equal((await api(accessToken)).status, 200);
  assert.equal((await api(accessToken, shown(machineCertificate))).status, 200);
});
