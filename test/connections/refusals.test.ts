/** What traces say about refused requests: each reason that the explanation knows, by a request that a real app could send. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
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
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' });
const account = await createTestAccount(server);
const scopes = ['read:posts'];
const confidential = await createTestClient(server);
const open = await createTestClient(server, { authMethod: 'none' });
const other = await createTestClient(server, { authMethod: 'none' });
const connectionOf = await createTraceReader(server);

let addresses = 0;
/** Refusals of one address are limited. */
function fromAnotherAddress(): Record<string, string> {
  addresses += 1;
  return { 'x-forwarded-for': `192.0.2.${addresses}` };
}

/** What the operator and the app's developers read about the request. */
const explanationOf = async (requestId: string | null) =>
  (await connectionOf(requestId)).refused.explanation ?? '';

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

async function assertionForm(claims: Record<string, unknown>, key = privateKey) {
  const now = Math.floor(Date.now() / 1_000);
  const assertion = await new SignJWT({
    ...{ iss: keyed.id, sub: keyed.id, aud: server.baseUrl, jti: newId(), iat: now, exp: now + 60 },
    ...claims,
  })
    .setProtectedHeader({ alg: 'ES256' })
    .sign(key);
  return {
    grant_type: 'client_credentials',
    client_id: keyed.id,
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: assertion,
  };
}

const asserts = async (claims: Record<string, unknown>) => redeems(keyed, await assertionForm(claims));

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
    'an assertion of a clock that is ahead',
    /Synchronize the clock/,
    () => asserts({ iat: now() + 900, exp: now() + 1_200 }),
  ],
  [
    'an assertion that is sent twice',
    /with its own jti/,
    async () => {
      const form = await assertionForm({});
      assert.equal((await postForm(server, '/oauth/token', keyed, form)).status, 200);
      return redeems(keyed, form);
    },
  ],
  [
    'an assertion that another key has signed',
    /signed with a key that is registered for the app/,
    async () => redeems(keyed, await assertionForm({}, (await generateKeyPair('ES256')).privateKey)),
  ],
  [
    'credentials in two places',
    /credentials of the app in one place/,
    () =>
      redeems(confidential, {
        ...{ grant_type: 'client_credentials', client_id: confidential.id },
        client_secret: confidential.secret ?? '',
      }),
  ],
  [
    'an app that nobody registered, at the token endpoint',
    /sent client_id no-such-app\. Expected the client_id of an app that is registered here/,
    () => redeems({ ...confidential, id: 'no-such-app' }, { grant_type: 'client_credentials' }),
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
    'another server’s resource, at the token endpoint',
    /sent resource https:\/\/elsewhere\.example\/api\. Expected one resource of this server/,
    async () => redeems(open, { ...(await codeForm()), resource: 'https://elsewhere.example/api' }),
  ],
  [
    'a refresh with a scope that the user has not allowed',
    /Expected only scopes that the user has allowed/,
    async () => {
      const { body } = await postForm(server, '/oauth/token', open, await codeForm());
      const refresh = { grant_type: 'refresh_token', refresh_token: String(body.refresh_token) };
      return redeems(open, { ...refresh, scope: 'read:posts write:posts' });
    },
  ],
  [
    'a code challenge that is too short',
    /Expected code_challenge and code_challenge_method=S256/,
    () => asksFor(open, { code_challenge: 'short' }),
  ],
  [
    'a verifier that is too short',
    /Keep the verifier from the authorization request/,
    async () => redeems(open, { ...(await codeForm()), code_verifier: 'short' }),
  ],
  [
    'a pushed request that is used or unknown',
    /Push a new request for each authorization/,
    () => asksFor(open, { request_uri: 'urn:ietf:params:oauth:request_uri:made-up' }),
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
