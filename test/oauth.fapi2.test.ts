/**
 * What the operator holds a client to: metadata given at its creation, and the preset for FAPI 2.0.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeProtectedHeader, exportJWK, generateKeyPair } from 'jose';
import * as openid from 'openid-client';
import shipped from '../nuncio.config.ts';
import { clientCreate } from '../src/commands/client_create.ts';
import { createPlatform } from '../src/platform.ts';
import { TestBrowser } from './support/browser.ts';
import { authorizationUrl, createPkce, createTestAccount, passPages } from './support/oauth.ts';
import { startTestServer } from './support/server.ts';

const oauth = { accessTokenAlgorithm: 'RS256' } as const;
const server = await startTestServer({ after }, {}, 'dev', createPlatform({ ...shipped, oauth }));
const account = await createTestAccount(server);
const redirectUri = 'https://bank.example/callback';

async function create(
  values: Record<string, string | boolean | readonly string[]>,
): Promise<{ client_id: string }> {
  const lines: string[] = [];
  await clientCreate.run(
    { values: { name: 'Bank', 'redirect-uri': [redirectUri], json: true, ...values }, positionals: [] },
    { config: { ...server.config, databaseUrl: server.databaseUrl }, print: (line) => lines.push(line) },
  );
  return JSON.parse(lines.join('\n'));
}

test('a client held to FAPI 2.0 pushes its requests and gets bound tokens, and nothing less works', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'k', alg: 'ES256', use: 'sig' }] };
  const { client_id } = await create({
    fapi2: true,
    'auth-method': 'private_key_jwt',
    metadata: JSON.stringify({ jwks }),
  });
  const config = await openid.discovery(
    new URL(server.baseUrl),
    client_id,
    undefined,
    openid.PrivateKeyJwt({ key: privateKey, kid: 'k' }),
    { execute: [openid.allowInsecureRequests] },
  );
  const verifier = openid.randomPKCECodeVerifier();
  const parameters = {
    redirect_uri: redirectUri,
    scope: 'openid read:posts',
    code_challenge: await openid.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  };
  const plain = authorizationUrl(server, { id: client_id, redirectUri }, parameters);
  const refused = await new TestBrowser(server.baseUrl).open(plain);
  assert.equal(refused.leftTo?.searchParams.get('error'), 'invalid_request');

  const pushed = async () => {
    const browser = new TestBrowser(server.baseUrl);
    const url = await openid.buildAuthorizationUrlWithPAR(config, parameters);
    return passPages(browser, await browser.open(url.href), account);
  };
  const bare = openid.authorizationCodeGrant(config, await pushed(), { pkceCodeVerifier: verifier });
  await assert.rejects(bare, { error: 'invalid_grant' });
  const DPoP = openid.getDPoPHandle(config, await openid.randomDPoPKeyPair());
  const tokens = await openid.authorizationCodeGrant(
    config,
    await pushed(),
    { pkceCodeVerifier: verifier },
    undefined,
    { DPoP },
  );
  assert.equal(tokens.token_type, 'dpop');
  assert.equal(
    decodeProtectedHeader(tokens.access_token).alg,
    'ES256',
    'FAPI 2.0 section 5.4, whatever is set',
  );
  const api = new URL('/api', server.baseUrl);
  const get = [undefined, undefined, { DPoP }] as const;
  const response = await openid.fetchProtectedResource(config, tokens.access_token, api, 'GET', ...get);
  assert.equal(response.status, 200);
  const bearer = await fetch(api, { headers: { authorization: `Bearer ${tokens.access_token}` } });
  assert.equal(bearer.status, 401);
});

test('what stands in the way of FAPI 2.0, and metadata that is none, is a usage error', async () => {
  for (const [values, message] of [
    [{ fapi2: true }, /private_key_jwt/],
    [{ fapi2: true, 'auth-method': 'private_key_jwt', 'no-pkce': true }, /no-pkce/],
    [{ metadata: '{' }, /not JSON/],
    [{ metadata: '[]' }, /JSON object/],
    [{ metadata: '{"redirect_uris":[]}' }, /redirect_uris is not one of/],
    [{ metadata: '{"__proto__":{}}' }, /__proto__ is not one of/],
    [{ metadata: '{"jwks_uri":7}' }, /jwks_uri must be a text/],
    [{ metadata: '{"dpop_bound_access_tokens":"yes"}' }, /must be a switch/],
    [{ metadata: '{"subject_type":"secret"}' }, /"public" or "pairwise"/],
    [
      {
        'redirect-uri': ['https://a.example/', 'https://b.example/'],
        metadata: '{"subject_type":"pairwise"}',
      },
      /sector_identifier_uri/,
    ],
    [{ 'auth-method': 'private_key_jwt' }, /private_key_jwt needs one of jwks, jwks_uri/],
    [{ 'auth-method': 'self_signed_tls_client_auth' }, /needs one of jwks, jwks_uri/],
    [{ 'auth-method': 'tls_client_auth' }, /needs one of tls_client_auth_san_dns/],
    [
      {
        'auth-method': 'tls_client_auth',
        metadata: '{"tls_client_auth_san_dns":"a.example","tls_client_auth_san_uri":"https://a.example/"}',
      },
      /not several/,
    ],
  ] as const) {
    await assert.rejects(create(values), message);
  }
});

test('metadata counts as it was given', async () => {
  const { client_id } = await create({
    metadata: JSON.stringify({ require_pushed_authorization_requests: true }),
  });
  const url = authorizationUrl(
    server,
    { id: client_id, redirectUri },
    {
      code_challenge: createPkce().challenge,
      code_challenge_method: 'S256',
    },
  );
  const { leftTo } = await new TestBrowser(server.baseUrl).open(url);
  assert.equal(leftTo?.searchParams.get('error'), 'invalid_request');
});
