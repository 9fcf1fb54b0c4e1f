/** Lifetime and format of access tokens, by client and by external API. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { metadataError } from '../../src/clients/metadata.ts';
import { createPlatform, PlatformError } from '../../src/platform.ts';
import { createTestClient, postForm } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const brief = 'https://brief.example';
const opaque = 'https://opaque.example';

const platform = createPlatform({
  oauth: {
    resources: [
      { url: brief, accessTokenSeconds: 300 },
      { url: opaque, accessTokenFormat: 'opaque' },
    ],
  },
});
const server = await startTestServer({ after }, {}, 'dev', platform);

/** @returns the response of the token endpoint to client credentials */
async function ask(metadata: Record<string, unknown>, resource?: string) {
  const client = await createTestClient(server, { metadata });
  const form = { grant_type: 'client_credentials', ...(resource === undefined ? {} : { resource }) };
  const { status, body } = await postForm(server, '/oauth/token', client, form);
  assert.equal(status, 200, JSON.stringify(body));
  return body as { access_token: string; expires_in: number };
}

function lifeOf(token: string): number {
  const { exp = 0, iat = 0 } = decodeJwt(token);
  return exp - iat;
}

test('an access token lives 15 minutes by default', async () => {
  const { access_token, expires_in } = await ask({});
  assert.equal(expires_in, 900);
  assert.equal(lifeOf(access_token), 900);
});

test('the shorter of the client’s and the API’s lifetime applies', async () => {
  for (const [metadata, resource, seconds] of [
    [{ access_token_seconds: 120 }, undefined, 120],
    [{}, brief, 300],
    [{ access_token_seconds: 120 }, brief, 120],
    [{ access_token_seconds: 600 }, brief, 300],
  ] as const) {
    const { access_token, expires_in } = await ask(metadata, resource);
    assert.equal(expires_in, seconds);
    assert.equal(lifeOf(access_token), seconds);
  }
});

test('an API may have opaque tokens, and the client’s own format takes precedence', async () => {
  assert.equal((await ask({}, opaque)).access_token.split('.').length, 1);
  assert.equal((await ask({ access_token_format: 'jwt' }, opaque)).access_token.split('.').length, 3);
});

test('a lifetime longer than the withdrawal list remembers is refused', async () => {
  assert.match(metadataError({ access_token_seconds: 901 }) ?? '', /from 60 to 900/);
  assert.match(metadataError({ access_token_seconds: 59 }) ?? '', /from 60 to 900/);
  assert.equal((await ask({ access_token_seconds: 86_400 })).expires_in, 900);
  for (const wrong of [
    { url: brief, accessTokenSeconds: 901 },
    { url: brief, accessTokenSeconds: 1.5 },
    { url: 'brief.example' },
    { url: brief, accessTokenFormat: 'saml' },
    { url: brief, life: 60 },
  ]) {
    assert.throws(() => createPlatform({ oauth: { resources: [wrong as never] } }), PlatformError);
  }
});
