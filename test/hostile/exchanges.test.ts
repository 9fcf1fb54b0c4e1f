/**
 * Single use under parallel requests. Of many concurrent exchanges exactly one gets tokens, in every token format and
 * binding, and no access token is issued unless a row is consumed for it.
 */

import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deviceCodeGrantType, type NewClient } from '../../src/clients/client.ts';
import { digest } from '../../src/crypto/digest.ts';
import { loadPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createProof, createProofKey, type ProofKey } from '../support/clients/dpop_proof.ts';
import {
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { selfSignedCertificate } from '../support/network/certificates.ts';
import { startTestServer } from '../support/servers/server.ts';

const platform = await loadPlatform(null);
const mtls = { certificateHeader: 'client-cert', verifiedHeader: null };
const elsewhere = 'https://api.example/';
const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' }, 'dev', {
  ...platform,
  oauth: { ...platform.oauth, mtls, resources: [elsewhere] },
});
const account = await createTestAccount(server);
const scopes = ['openid', 'read:posts'];
const certificateHeader = {
  'client-cert': `:${new X509Certificate(selfSignedCertificate).raw.toString('base64')}:`,
};

const formats: Record<string, Record<string, unknown>> = {
  JWT: {},
  opaque: { access_token_format: 'opaque' },
};
const bindings = ['bearer', 'DPoP', 'mTLS'] as const;
type Binding = (typeof bindings)[number];

/** A client, and the headers that bind the tokens of each request: every DPoP proof is a new one. */
async function setUp(fields: Partial<NewClient>, metadata: Record<string, unknown>, binding: Binding) {
  const bound = binding === 'mTLS' ? { tls_client_certificate_bound_access_tokens: true } : {};
  const client = await createTestClient(server, { ...fields, metadata: { ...metadata, ...bound } });
  const key = binding === 'DPoP' ? await createProofKey() : null;
  return { client, headers: () => bindingHeaders(binding, key) };
}

async function bindingHeaders(binding: Binding, key: ProofKey | null): Promise<Record<string, string>> {
  if (binding === 'mTLS') return certificateHeader;
  if (key === null) return {};
  const request = { method: 'POST', url: `${server.baseUrl}/oauth/token`, token: '' };
  return { dpop: await createProof(key, request, { claims: { ath: undefined } }) };
}

interface Attempt {
  client: TestClient;
  form: Record<string, string>;
  headers: () => Promise<Record<string, string>>;
}

async function atOnce({ client, form, headers }: Attempt, count = 20) {
  const prepared = await Promise.all(Array.from({ length: count }, headers));
  return Promise.all(prepared.map((sent) => postForm(server, '/oauth/token', client, form, sent)));
}

/** Counts a grant's tokens in the database. */
async function stored(grantId: string): Promise<{ access: number; refresh: number }> {
  const { rows } = await sql<{ access: number; refresh: number }>`
    select (select count(*)::int from access_tokens where grant_id = ${grantId}) as access,
      (select count(*)::int from refresh_tokens where grant_id = ${grantId}) as refresh`.execute(server.db);
  return rows[0] as { access: number; refresh: number };
}

for (const [format, metadata] of Object.entries(formats)) {
  for (const binding of bindings) {
    for (const isRefreshed of [true, false]) {
      const what = `${format}, ${binding}, ${isRefreshed ? 'with' : 'without'} refresh tokens`;
      const grantTypes = ['authorization_code', ...(isRefreshed ? ['refresh_token'] : [])];

      test(`exactly one of 20 concurrent exchanges of a code gets tokens: ${what}`, async () => {
        const { client, headers } = await setUp({ grantTypes }, metadata, binding);
        const { code, verifier } = await obtainCode(server, { account, client, scopes });
        const form = {
          grant_type: 'authorization_code',
          code,
          code_verifier: verifier,
          redirect_uri: client.redirectUri,
        };
        const answers = await atOnce({ client, form, headers });
        const given = answers.filter(({ body }) => 'access_token' in body || 'id_token' in body);
        assert.equal(given.length, 1);
        assert.equal(given[0]?.status, 200);
        assert.equal('refresh_token' in (given[0]?.body ?? {}), isRefreshed);
        const refused = answers.filter((answer) => answer !== given[0]);
        assert.deepEqual([...new Set(refused.map(({ body }) => body.error))], ['invalid_grant']);
        const { rows } = await sql<{ grant_id: string; is_used: boolean }>`
          select grant_id, consumed_at is not null as is_used from authorization_codes
          where digest = ${digest(code)}`.execute(server.db);
        assert.equal(rows[0]?.is_used, true);
        const { refresh } = await stored(rows[0]?.grant_id ?? '');
        assert.equal(refresh, isRefreshed ? 1 : 0);
      });
    }
  }
}

/** Starts a device flow and allows it as the user. @returns the device code */
async function allowDevice(client: TestClient): Promise<string> {
  const { body } = await postForm(server, '/oauth/device', client, { scope: scopes.join(' ') });
  const browser = new TestBrowser(server.baseUrl);
  let page = await browser.open(`${server.baseUrl}/device`);
  page = await browser.submit(page, { user_code: String(body.user_code) });
  page = await browser.submit(page, {});
  page = await browser.submit(page, { email: account.email, password: account.password, action: 'login' });
  page = await browser.submit(page, { action: 'allow' });
  assert.match(page.text, /Device connected/);
  return String(body.device_code);
}

for (const [format, metadata] of Object.entries(formats)) {
  for (const binding of bindings) {
    test(`exactly one of 20 concurrent polls of a device gets tokens: ${format}, ${binding}`, async () => {
      for (const grantTypes of [[deviceCodeGrantType], [deviceCodeGrantType, 'refresh_token']]) {
        const { client, headers } = await setUp({ grantTypes, redirectUris: [] }, metadata, binding);
        const form = { grant_type: deviceCodeGrantType, device_code: await allowDevice(client) };
        const answers = await atOnce({ client, form, headers });
        const given = answers.filter(({ body }) => 'access_token' in body || 'id_token' in body);
        assert.equal(given.length, 1);
        assert.ok(answers.every((answer) => answer === given[0] || answer.body.error === 'invalid_grant'));
      }
    });
  }
}

test('a code is used up only by the exchange that gets tokens, when other exchanges name another API', async () => {
  const client = await createTestClient(server);
  const { code, verifier } = await obtainCode(server, {
    account,
    client,
    scopes,
    parameters: { resource: elsewhere },
  });
  const form = {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  };
  const wrong = await postForm(server, '/oauth/token', client, { ...form, resource: server.baseUrl });
  assert.equal(wrong.body.error, 'invalid_target');
  const answers = await atOnce({ client, form, headers: async () => ({}) });
  assert.equal(answers.filter(({ status }) => status === 200).length, 1);
});

test('attack: a used refresh token is worthless to another key or client within the 60 seconds', async () => {
  const { client, headers } = await setUp({ authMethod: 'none' }, {}, 'DPoP');
  const { code, verifier } = await obtainCode(server, { account, client, scopes });
  const exchange = {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  };
  const first = await postForm(server, '/oauth/token', client, exchange, await headers());
  const form = { grant_type: 'refresh_token', refresh_token: String(first.body.refresh_token) };
  const thief = await createProofKey();
  const other = await createTestClient(server, { authMethod: 'none' });
  const attack = async () => {
    const byKey = await postForm(server, '/oauth/token', client, form, await bindingHeaders('DPoP', thief));
    const byNone = await postForm(server, '/oauth/token', client, form);
    const byClient = await postForm(server, '/oauth/token', other, form, await headers());
    for (const { status, body } of [byKey, byNone, byClient]) {
      assert.deepEqual([status, 'access_token' in body], [400, false]);
    }
  };
  await attack();
  const used = await postForm(server, '/oauth/token', client, form, await headers());
  assert.equal(used.status, 200);
  await attack();
  // The owner repeats the request and gets the same successor: the attacks ended nothing.
  const again = await postForm(server, '/oauth/token', client, form, await headers());
  assert.equal(again.body.refresh_token, used.body.refresh_token);
});

test('a concurrent refresh and withdrawal leave no working token', async () => {
  const client = await createTestClient(server);
  for (let round = 0; round < 5; round += 1) {
    const { code, verifier } = await obtainCode(server, { account, client, scopes });
    const exchange = {
      grant_type: 'authorization_code',
      code,
      code_verifier: verifier,
      redirect_uri: client.redirectUri,
    };
    const first = await postForm(server, '/oauth/token', client, exchange);
    const token = String(first.body.refresh_token);
    const form = { grant_type: 'refresh_token', refresh_token: token };
    const [, ...answers] = await Promise.all([
      postForm(server, '/oauth/revoke', client, { token }),
      ...Array.from({ length: 10 }, () => postForm(server, '/oauth/token', client, form)),
    ]);
    for (const { body } of [first, ...answers]) {
      for (const value of [body.access_token, body.refresh_token]) {
        if (value === undefined) continue;
        const { body: seen } = await postForm(server, '/oauth/introspect', client, { token: String(value) });
        assert.deepEqual(seen, { active: false });
      }
    }
  }
});

test('no access token is issued when the consuming statement changes no row', async (t) => {
  for (const [format, metadata] of Object.entries(formats)) {
    for (const grantTypes of [['authorization_code'], ['authorization_code', 'refresh_token']]) {
      const { client } = await setUp({ grantTypes }, metadata, 'bearer');
      const device = await createTestClient(server, {
        grantTypes: [deviceCodeGrantType, ...grantTypes.slice(1)],
        redirectUris: [],
        metadata,
      });
      const deviceForm = { grant_type: deviceCodeGrantType, device_code: await allowDevice(device) };
      const exchange = async () => {
        const { code, verifier } = await obtainCode(server, { account, client, scopes });
        const redirect_uri = client.redirectUri;
        return { grant_type: 'authorization_code', code, code_verifier: verifier, redirect_uri };
      };
      const before = await postForm(server, '/oauth/token', client, await exchange());
      const forms: [TestClient, Record<string, string>][] = [
        [client, await exchange()],
        [device, deviceForm],
      ];
      if (before.body.refresh_token !== undefined) {
        const refresh_token = String(before.body.refresh_token);
        forms.push([client, { grant_type: 'refresh_token', refresh_token }]);
      }
      await ignoreUpdates(true);
      t.after(() => ignoreUpdates(false));
      for (const [as, form] of forms) {
        const { status, body } = await postForm(server, '/oauth/token', as, form);
        assert.equal(status, 400, `${format} ${form.grant_type} ${JSON.stringify(body)}`);
        assert.deepEqual(
          ['access_token', 'refresh_token', 'id_token'].filter((name) => name in body),
          [],
        );
      }
      await ignoreUpdates(false);
    }
  }
});

/** Makes the database ignore each consumption, as if another request had been first. */
async function ignoreUpdates(isOn: boolean): Promise<void> {
  await sql`
    create or replace function ignore_consumption() returns trigger language plpgsql as $$
    begin
      return case when old.consumed_at is distinct from new.consumed_at then null else new end;
    end $$`.execute(server.db);
  for (const table of ['authorization_codes', 'refresh_tokens', 'device_codes']) {
    await sql`drop trigger if exists ignored on ${sql.table(table)}`.execute(server.db);
    if (!isOn) continue;
    await sql`
      create trigger ignored before update on ${sql.table(table)}
      for each row execute function ignore_consumption()`.execute(server.db);
  }
}
