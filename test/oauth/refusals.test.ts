/**
 * A refused token request uses nothing up: only the request that succeeds consumes a refresh token,
 * authorization code or device code.
 */

import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { digest } from '../../src/crypto/digest.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createProof, createProofKey, type ProofKey } from '../support/clients/dpop_proof.ts';
import {
  basic,
  createTestAccount,
  createTestClient,
  obtainCodeForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { machineCertificate, selfSignedCertificate } from '../support/network/certificates.ts';
import { startTestServer } from '../support/servers/server.ts';

const declared = 'https://notes.example';
const mtls = { certificateHeader: 'client-cert', verifiedHeader: 'x-client-verify' };
const platform = createPlatform({ oauth: { resources: [declared], mtls } });
const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' }, 'dev', platform);
const account = await createTestAccount(server);
const tokenUrl = `${server.baseUrl}/oauth/token`;

/** A change of a valid request; null omits a parameter. */
interface Change {
  form?: Record<string, string | readonly string[] | null>;
  headers?: Record<string, string>;
  as?: TestClient;
  secret?: string;
}

async function send(client: TestClient, form: Record<string, string>, change: Change = {}) {
  const body = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...form, ...change.form })) {
    for (const each of [value ?? []].flat()) body.append(name, each);
  }
  const { id, secret, authMethod } = change.as ?? client;
  if (authMethod === 'none') body.set('client_id', id);
  const authorization = basic(id, change.secret ?? secret ?? '');
  const headers = { ...(authMethod === 'none' ? {} : { authorization }), ...change.headers };
  const response = await fetch(tokenUrl, { method: 'POST', headers, body });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

type Table = 'refresh_tokens' | 'authorization_codes' | 'device_codes';

async function isUnused(table: Table, value: string): Promise<boolean> {
  const { rows } = await sql<{ consumed_at: Date | null }>`
    select consumed_at from ${sql.table(table)} where digest = ${digest(value)}`.execute(server.db);
  return rows.length === 1 && rows[0]?.consumed_at === null;
}

/** Moves the time of the last poll back in the database, instead of waiting. */
async function endWait(): Promise<void> {
  await sql`update device_codes set last_polled_at = last_polled_at - interval '10 minutes'`.execute(
    server.db,
  );
}

/** Asserts that each changed request is rejected and consumes nothing, and that the valid request then succeeds. */
async function refuseAll(
  table: Table,
  value: string,
  client: TestClient,
  form: Record<string, string>,
  good: () => Promise<Change>,
  changes: Record<string, [change: Change | (() => Promise<Change>), error: string]>,
) {
  for (const [what, [change, error]] of Object.entries(changes)) {
    await endWait();
    const { status, body } = await send(
      client,
      form,
      typeof change === 'function' ? await change() : { ...(await good()), ...change },
    );
    assert.equal(body.error, error, `${what}: ${status} ${JSON.stringify(body)}`);
    assert.ok(await isUnused(table, value), what);
  }
  await endWait();
  const { status, body } = await send(client, form, await good());
  assert.equal(status, 200, JSON.stringify(body));
  return body;
}

const wrongResources: Record<string, [Change, string]> = {
  'a resource that is not declared': [{ form: { resource: 'https://unknown.example' } }, 'invalid_target'],
  'a resource that was not granted': [{ form: { resource: declared } }, 'invalid_target'],
  'two resources, the first not granted': [
    { form: { resource: [declared, server.baseUrl] } },
    'invalid_target',
  ],
  'a resource that is no URL': [{ form: { resource: 'notes' } }, 'invalid_target'],
};

function bareProof(key: ProofKey): Promise<string> {
  return createProof(key, { method: 'POST', url: tokenUrl, token: '' }, { claims: { ath: undefined } });
}

async function proven(key: ProofKey): Promise<Change> {
  return { headers: { dpop: await bareProof(key) } };
}

const nothing = async (): Promise<Change> => ({});

function codeOf(client: TestClient, parameters: Record<string, string> = {}) {
  return obtainCodeForm(server, { account, client, scopes: ['read:posts'], parameters });
}

async function refreshTokenOf(client: TestClient, change: Change = {}): Promise<string> {
  const { form } = await codeOf(client);
  const { status, body } = await send(client, form, change);
  assert.equal(status, 200, JSON.stringify(body));
  return String(body.refresh_token);
}

function refreshForm(refreshToken: string): Record<string, string> {
  return { grant_type: 'refresh_token', refresh_token: refreshToken };
}

test('a refused refresh leaves the refresh token unused, whatever the reason', async () => {
  for (const metadata of [{}, { access_token_format: 'opaque' }]) {
    const client = await createTestClient(server, { metadata });
    const value = await refreshTokenOf(client);
    const other = await createTestClient(server);
    const { refresh_token: successor } = await refuseAll(
      'refresh_tokens',
      value,
      client,
      refreshForm(value),
      nothing,
      {
        ...wrongResources,
        'a scope that was not granted': [{ form: { scope: 'read:posts write:posts' } }, 'invalid_scope'],
        'a malformed scope': [{ form: { scope: 'read:posts bad"scope' } }, 'invalid_scope'],
        'two values of scope': [{ form: { scope: ['read:posts', 'read:posts'] } }, 'invalid_request'],
        'another client': [{ as: other }, 'invalid_grant'],
        'a wrong secret': [{ secret: 'wrong' }, 'invalid_client'],
        'a bad proof': [{ headers: { dpop: 'garbage' } }, 'invalid_dpop_proof'],
      },
    );
    assert.ok(!(await isUnused('refresh_tokens', value)));
    assert.equal((await send(client, refreshForm(String(successor)))).status, 200);
  }
});

test('a refused refresh of a key-bound token leaves it unused', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const [key, other] = [await createProofKey(), await createProofKey()];
  const value = await refreshTokenOf(client, await proven(key));
  const used = await proven(key);
  assert.equal((await send(client, refreshForm('unknown'), used)).body.error, 'invalid_grant');
  await refuseAll('refresh_tokens', value, client, refreshForm(value), () => proven(key), {
    ...wrongResources,
    'no proof': [nothing, 'invalid_grant'],
    'the proof of another key': [() => proven(other), 'invalid_grant'],
  });
});

test('a refused refresh of a certificate-bound token leaves it unused', async () => {
  const client = await createTestClient(server, {
    authMethod: 'none',
    metadata: { tls_client_certificate_bound_access_tokens: true },
  });
  const shown = async (pem: string): Promise<Change> => ({
    headers: { 'client-cert': `:${new X509Certificate(pem).raw.toString('base64')}:` },
  });
  const value = await refreshTokenOf(client, await shown(selfSignedCertificate));
  await refuseAll('refresh_tokens', value, client, refreshForm(value), () => shown(selfSignedCertificate), {
    ...wrongResources,
    'no certificate': [nothing, 'invalid_grant'],
    'another certificate': [() => shown(machineCertificate), 'invalid_grant'],
  });
});

test('a refused redemption leaves the authorization code unused, with or without a refresh token', async () => {
  const other = await createTestClient(server);
  for (const fields of [
    {},
    { grantTypes: ['authorization_code'] },
    { grantTypes: ['authorization_code'], metadata: { access_token_format: 'opaque' } },
  ]) {
    const client = await createTestClient(server, fields);
    const { code, form } = await codeOf(client);
    await refuseAll('authorization_codes', code, client, form, nothing, {
      ...wrongResources,
      'a wrong verifier': [{ form: { code_verifier: 'x'.repeat(43) } }, 'invalid_grant'],
      'no verifier': [{ form: { code_verifier: null } }, 'invalid_grant'],
      'another redirect_uri': [{ form: { redirect_uri: 'https://other.example/' } }, 'invalid_grant'],
      'no redirect_uri': [{ form: { redirect_uri: null } }, 'invalid_request'],
      'another client': [{ as: other }, 'invalid_grant'],
      'a wrong secret': [{ secret: 'wrong' }, 'invalid_client'],
      'a bad proof': [{ headers: { dpop: 'garbage' } }, 'invalid_dpop_proof'],
    });
    // RFC 6749 section 4.1.2: a code can be used only once.
    assert.equal((await send(client, form)).body.error, 'invalid_grant');
  }
});

test('a refused redemption of a key-bound code leaves it unused', async () => {
  const [key, other] = [await createProofKey(), await createProofKey()];
  for (const grantTypes of [['authorization_code'], ['authorization_code', 'refresh_token']]) {
    const client = await createTestClient(server, { grantTypes });
    const { code, form } = await codeOf(client, { dpop_jkt: key.jkt });
    await refuseAll('authorization_codes', code, client, form, () => proven(key), {
      'no proof': [nothing, 'invalid_grant'],
      'the proof of another key': [() => proven(other), 'invalid_grant'],
    });
  }
});

async function deviceCodeOf(client: TestClient): Promise<string> {
  const authorization = basic(client.id, client.secret ?? '');
  const body = new URLSearchParams({ scope: 'read:posts', client_id: client.id });
  const response = await fetch(`${server.baseUrl}/oauth/device`, {
    method: 'POST',
    headers: { authorization },
    body,
  });
  const started = (await response.json()) as Record<string, string>;
  const browser = new TestBrowser(server.baseUrl);
  const input = await browser.open(`${server.baseUrl}/device`);
  const confirmation = await browser.submit(input, { user_code: String(started.user_code) });
  const login = await browser.submit(confirmation, {});
  const credentials = { email: account.email, password: account.password, action: 'login' };
  const done = await browser.submit(await browser.submit(login, credentials), { action: 'allow' });
  assert.equal(done.response.status, 200, done.text);
  return String(started.device_code);
}

test('a refused poll leaves the device code unused', async () => {
  const key = await createProofKey();
  const bound = { metadata: { dpop_bound_access_tokens: true } };
  for (const fields of [{}, bound]) {
    for (const grantTypes of [[deviceCodeGrantType], [deviceCodeGrantType, 'refresh_token']]) {
      const client = await createTestClient(server, { ...fields, grantTypes });
      const value = await deviceCodeOf(client);
      const form = { grant_type: deviceCodeGrantType, device_code: value };
      const good = () => (fields === bound ? proven(key) : nothing());
      await refuseAll('device_codes', value, client, form, good, {
        ...wrongResources,
        'another client': [
          { as: await createTestClient(server, { grantTypes: [deviceCodeGrantType] }) },
          'invalid_grant',
        ],
        'a bad proof': [{ headers: { dpop: 'garbage' } }, 'invalid_dpop_proof'],
        ...(fields === bound
          ? { 'no proof': [nothing, 'invalid_grant'] satisfies [() => Promise<Change>, string] }
          : {}),
      });
      assert.equal((await send(client, form)).body.error, 'invalid_grant');
    }
  }
});

test('exactly one of many requests with one code succeeds, also after a refused one', async () => {
  for (const metadata of [{}, { access_token_format: 'opaque' }]) {
    const single = await createTestClient(server, { grantTypes: ['authorization_code'], metadata });
    const { form } = await codeOf(single);
    const device = await createTestClient(server, { grantTypes: [deviceCodeGrantType], metadata });
    const deviceForm = { grant_type: deviceCodeGrantType, device_code: await deviceCodeOf(device) };
    for (const [client, request] of [
      [single, form],
      [device, deviceForm],
    ] as const) {
      const refused = await send(client, request, { form: { resource: 'https://unknown.example' } });
      assert.equal(refused.body.error, 'invalid_target');
      const sent = Array.from({ length: 8 }, () => send(client, request));
      const statuses = (await Promise.all(sent)).map(({ status }) => status);
      assert.deepEqual(statuses.toSorted(), [200, 400, 400, 400, 400, 400, 400, 400]);
    }
  }
});
