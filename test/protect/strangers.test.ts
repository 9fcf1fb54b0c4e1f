/**
 * Anonymous requests to an API behind `nuncio/protect`: tokens that nobody issued must not keep the API's users out. The
 * issuer is a real server with a low rate limit.
 */

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { isOpaqueToken as isOurs, newOpaqueToken } from '../../src/oauth/opaque_token.ts';
import { createPlatform } from '../../src/platform.ts';
import { createProtector, type ProtectorOptions } from '../../src/protect/protect.ts';
import { isOpaqueToken } from '../../src/shared/opaque_token.ts';
import { createTestAccount, createTestClient, mintAccessToken, postForm } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const platform = createPlatform({ oauth: { accessTokenFormat: 'opaque' } });
const server = await startTestServer({ after }, { NUNCIO_RATE_LIMIT: '40' }, 'dev', platform);
const account = await createTestAccount(server);
const client = await createTestClient(server);

/** More than the server's limit for one client and minute, which is 400, and more than the protector's own. */
const floodLength = 1_000;

/** A protected API with a client of its own. */
async function setUp(options: Partial<ProtectorOptions> = {}) {
  const notes = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:tokens'],
    redirectUris: [],
  });
  const introspected: string[] = [];
  const protect = createProtector({
    issuer: server.baseUrl,
    url: 'https://notes.example',
    audience: server.baseUrl,
    clientId: notes.id,
    clientSecret: notes.secret ?? '',
    onError() {},
    async fetch(url, init) {
      if (url.endsWith('/oauth/introspect')) introspected.push(String(init?.body));
      return fetch(url, init);
    },
    ...options,
  });
  const ask = async (token: string) => {
    const headers = { authorization: `Bearer ${token}` };
    const outcome = await protect.check({ method: 'GET', url: '/notes', headers }, 'read:posts');
    return outcome.granted ? 200 : outcome.status;
  };
  /** Sends tokens as fast as 20 connections can. @returns the statuses */
  const flood = async (makeToken: () => string) => {
    const statuses = new Set<number>();
    let left = floodLength;
    const send = async () => {
      while (left > 0) {
        left -= 1;
        statuses.add(await ask(makeToken()));
      }
    };
    await Promise.all(Array.from({ length: 20 }, send));
    return statuses;
  };
  return { ask, flood, introspected };
}

async function opaqueToken(): Promise<string> {
  const form = { grant_type: 'client_credentials', scope: 'read:posts' };
  const { status, body } = await postForm(server, '/oauth/token', client, form);
  assert.equal(status, 200, JSON.stringify(body));
  return String(body.access_token);
}

async function signedToken(): Promise<string> {
  return (await mintAccessToken(server, { account, client, scopes: ['read:posts'] })).accessToken;
}

test('attack: random bearer strings are rejected without a request to the issuer, and users keep access', async () => {
  const { ask, flood, introspected } = await setUp({ cacheSeconds: 0 });
  assert.deepEqual(await flood(() => randomBytes(32).toString('base64url')), new Set([401]));
  for (const token of ['nat_', 'nat_x', `nat_${'a'.repeat(49)}`, `NAT_${newOpaqueToken().slice(4)}`, 'a'])
    assert.equal(await ask(token), 401, token);
  assert.deepEqual(introspected, []);
  assert.equal(await ask(await opaqueToken()), 200);
  assert.equal(await ask(await signedToken()), 200);
});

for (const cacheSeconds of [0, 1]) {
  test(`attack: a flood of well-formed tokens that nobody issued keeps out no user with cacheSeconds ${cacheSeconds}`, async () => {
    const { ask, flood, introspected } = await setUp({ cacheSeconds });
    const known = await opaqueToken();
    assert.equal(await ask(known), 200);
    const begunAt = performance.now();
    const isOver = flood(newOpaqueToken).then((statuses) => {
      assert.ok([...statuses].every((status) => status === 401 || status === 503));
      return true;
    });
    // The app's own tokens are limited too: 400 introspections a minute.
    let count = 0;
    while (
      count < 100 &&
      !(await Promise.race([isOver, new Promise((resolve) => setTimeout(resolve, 20))]))
    ) {
      assert.equal(await ask(known), 200, 'a token that was active before');
      assert.equal(await ask(await signedToken()), 200, 'a token with the issuer’s signature');
      count += 1;
    }
    await isOver;
    assert.equal(await ask(known), 200);
    assert.equal(await ask(await signedToken()), 200);
    const strangers = introspected.length - 2 * count - 3;
    // 300 at once, then 10 a second, and those in flight when the allowance was used up.
    const strangersMax = 350 + (10 * (performance.now() - begunAt)) / 1_000;
    assert.ok(strangers < strangersMax, `${strangers} requests for tokens that nobody issued`);
  });
}

test('a new opaque token is accepted again once a flood is over', async () => {
  const { ask, flood } = await setUp();
  await flood(newOpaqueToken);
  const token = await opaqueToken();
  assert.equal(
    await until(
      () => ask(token),
      (status) => status !== 503,
    ),
    200,
  );
});

test('an inactive token is asked about once, however often it is sent', async () => {
  const { ask, introspected } = await setUp({ cacheSeconds: 0 });
  const token = newOpaqueToken();
  for (let count = 0; count < 20; count += 1) assert.equal(await ask(token), 401);
  assert.equal(introspected.length, 1);
});

test('opaqueTokens: false rejects every opaque token without a request, and accepts JWTs', async () => {
  const { ask, introspected } = await setUp({ opaqueTokens: false });
  assert.equal(await ask(await opaqueToken()), 401);
  assert.equal(introspected.length, 0);
  assert.equal(await ask(await signedToken()), 200);
});

test('every opaque token has the form that the metadata announces, and a changed character breaks it', async () => {
  const metadata = await fetch(`${server.baseUrl}/.well-known/oauth-authorization-server`);
  const { opaque_access_token_prefix: prefix } = (await metadata.json()) as Record<string, string>;
  assert.equal(prefix, 'nat_');
  const tokens = [await opaqueToken(), ...Array.from({ length: 300 }, newOpaqueToken)];
  for (const token of tokens) {
    assert.match(token, /^nat_[\w-]{49}$/);
    assert.ok(isOurs(token) && isOpaqueToken(token, prefix), token);
    const at = 4 + Math.floor(Math.random() * 49);
    const changed = token.slice(0, at) + (token[at] === 'A' ? 'B' : 'A') + token.slice(at + 1);
    assert.ok(!isOurs(changed) && !isOpaqueToken(changed, prefix), changed);
  }
});
