/** What traces say about refused requests: each reason that the explanation knows, by a request that a real app could send. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { readConnections } from '../../src/connections/connection_store.ts';
import { newId } from '../../src/crypto/ids.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createProof, createProofKey, type ProofChanges } from '../support/clients/dpop_proof.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  obtainCodeForm,
  passPages,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' });
const account = await createTestAccount(server);
const scopes = ['read:posts'];
const confidential = await createTestClient(server);
const open = await createTestClient(server, { authMethod: 'none' });
const other = await createTestClient(server, { authMethod: 'none' });

let addresses = 0;
/** Refusals of one address are limited. */
function fromAnotherAddress(): Record<string, string> {
  addresses += 1;
  return { 'x-forwarded-for': `192.0.2.${addresses}` };
}

/** Waits for the explanation of the request. */
async function explanationOf(requestId: string | null): Promise<string> {
  assert.ok(requestId !== null);
  const find = async () => {
    const [found] = await readConnections(server.db, { requestId }, 1);
    return found?.steps.find(({ request, outcome }) => request === requestId && outcome === 'refused');
  };
  const step = await until(find, (found) => found !== undefined);
  return step?.explanation ?? '';
}

async function asksFor(
  client: TestClient,
  parameters: Record<string, string | undefined>,
  browser?: TestBrowser,
) {
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256', scope: scopes.join(' ') };
  const url = authorizationUrl(server, client, { ...pkce, ...parameters });
  const headers = fromAnotherAddress();
  const { headers: received } = await (browser === undefined
    ? fetch(url, { redirect: 'manual', headers })
    : browser.request(url, { headers }));
  return explanationOf(received.get('request-id'));
}

async function redeems(
  client: TestClient,
  form: Record<string, string>,
  headers: Record<string, string> = {},
) {
  const sent = { ...fromAnotherAddress(), ...headers };
  const { status, headers: received } = await postForm(server, '/oauth/token', client, form, sent);
  assert.ok(status >= 400, `refused: ${status}`);
  return explanationOf(received.get('request-id'));
}

async function codeForm(client = open): Promise<Record<string, string>> {
  const { form } = await obtainCodeForm(server, { account, client, scopes });
  return { ...form };
}

async function signedIn(): Promise<TestBrowser> {
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256', scope: scopes.join(' ') };
  await passPages(browser, await browser.open(authorizationUrl(server, confidential, pkce)), account);
  return browser;
}

async function proofed(changes: ProofChanges): Promise<string> {
  const url = `${server.baseUrl}/oauth/token`;
  const proof = await createProof(await createProofKey(), { method: 'POST', url, token: '' }, changes);
  return redeems(confidential, { grant_type: 'client_credentials' }, { dpop: proof });
}

const { privateKey, publicKey } = await generateKeyPair('ES256');
const keyed = await createTestClient(server, {
  authMethod: 'private_key_jwt',
  metadata: { jwks: { keys: [await exportJWK(publicKey)] } },
});

async function asserts(claims: Record<string, unknown>): Promise<string> {
  const now = Math.floor(Date.now() / 1_000);
  const assertion = await new SignJWT({
    ...{ iss: keyed.id, sub: keyed.id, aud: server.baseUrl, jti: newId(), iat: now, exp: now + 60 },
    ...claims,
  })
    .setProtectedHeader({ alg: 'ES256' })
    .sign(privateKey);
  return redeems(keyed, {
    grant_type: 'client_credentials',
    client_id: keyed.id,
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: assertion,
  });
}

const now = () => Math.floor(Date.now() / 1_000);
const cases: readonly (readonly [reason: string, expected: RegExp, refused: () => Promise<string>])[] = [
  [
    'no PKCE',
    /Expected code_challenge and code_challenge_method=S256/,
    () => asksFor(open, { code_challenge: undefined, code_challenge_method: undefined }),
  ],
  [
    'a challenge that is not hashed',
    /Expected code_challenge and code_challenge_method=S256/,
    () => asksFor(open, { code_challenge_method: 'plain' }),
  ],
  [
    'a code that is used',
    /authorization code of this app that is younger than 60 seconds/,
    async () => {
      const form = await codeForm();
      assert.equal((await postForm(server, '/oauth/token', open, form)).status, 200);
      return redeems(open, form);
    },
  ],
  [
    'a code with another redirect URI',
    /Expected the redirect_uri of the authorization request/,
    async () => redeems(open, { ...(await codeForm()), redirect_uri: 'https://elsewhere.example/cb' }),
  ],
  ['the code of another app', /issued to another app/, async () => redeems(other, await codeForm())],
  [
    'a refresh token that is unknown',
    /latest refresh token of a grant/,
    () => redeems(open, { grant_type: 'refresh_token', refresh_token: 'made-up' }),
  ],
  [
    'a metadata document that cannot be read',
    /responds 200 within a few seconds with valid JSON metadata/,
    () => asksFor({ ...open, id: 'https://nowhere.invalid/app.json' }, {}),
  ],
  [
    'no client authentication',
    /client authentication by client_secret_basic/,
    () => redeems({ ...confidential, authMethod: 'none' }, { grant_type: 'client_credentials' }),
  ],
  [
    'an assertion that has expired',
    /Synchronize the clock/,
    () => asserts({ iat: now() - 900, exp: now() - 600 }),
  ],
  [
    'an assertion for another server',
    /Expected the audience http/,
    () => asserts({ aud: 'https://elsewhere.example' }),
  ],
  [
    'a proof for another URL',
    /Expected a DPoP proof whose htu is the URL below/,
    () => proofed({ claims: { htu: 'https://elsewhere.example/oauth/token' } }),
  ],
  [
    'a proof that is none',
    /Expected a new DPoP proof for this request/,
    () => redeems(confidential, { grant_type: 'client_credentials' }, { dpop: 'none' }),
  ],
  [
    'another server’s resource',
    /sent resource https:\/\/elsewhere\.example\/api\. Expected one resource of this server/,
    () => asksFor(open, { resource: 'https://elsewhere.example/api' }),
  ],
  [
    'a scope that the app may not have',
    /Compare scopes_supported/,
    () => asksFor(open, { scope: 'read:accounts' }),
  ],
  [
    'a grant type that the app does not have',
    /Add it to the app’s grant_types/,
    () => redeems(open, { grant_type: 'client_credentials' }),
  ],
  [
    'a grant type that nobody has',
    /grant_types_supported of the metadata|Add it to the app’s grant_types/,
    () => redeems(open, { grant_type: 'made-up' }),
  ],
  [
    'a response type that nobody has',
    /Expected response_type=code/,
    () => asksFor(open, { response_type: 'token' }),
  ],
  [
    'nobody who is signed in, without a page',
    /user is not signed in\. Repeat the request without prompt=none/,
    () => asksFor(open, { prompt: 'none' }),
  ],
  [
    'a user who has not consented, without a page',
    /user has not allowed this access\. Repeat the request without prompt=none/,
    async () => asksFor(other, { prompt: 'none' }, await signedIn()),
  ],
  [
    'a code that is made up',
    /authorization code of this app that is younger|Expected a code or refresh token of this app/,
    () =>
      redeems(open, {
        grant_type: 'authorization_code',
        code: 'made-up',
        redirect_uri: open.redirectUri,
        code_verifier: createPkce().verifier,
      }),
  ],
];

for (const [reason, expected, refused] of cases) {
  test(`a refusal says what to do: ${reason}`, async () => {
    assert.match(await refused(), expected);
  });
}
