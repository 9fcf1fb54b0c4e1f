/** Rate limits by client and by grant, at the API and where clients authenticate. */

import assert from 'node:assert/strict';
import { request } from 'node:http';
import { after, test } from 'node:test';
import { newSecret } from '../../src/crypto/digest.ts';
import { newId } from '../../src/crypto/ids.ts';
import { newOpaqueToken } from '../../src/oauth/opaque_token.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  basic,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCode,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { startOfMinute } from '../support/values/minute.ts';

const server = await startTestServer({ after }, { NUNCIO_RATE_LIMIT: '3', NUNCIO_TRUST_PROXY: '127.0.0.1' });
const forToken = { grant_type: 'client_credentials', scope: 'read:posts' };

async function ask(
  path: string,
  address: string,
  headers: Record<string, string>,
  form: Record<string, string>,
) {
  const response = await fetch(server.baseUrl + path, {
    method: 'POST',
    headers: { 'x-forwarded-for': address, ...headers },
    body: new URLSearchParams(form),
  });
  const text = await response.text();
  return { status: response.status, headers: response.headers, body: text === '' ? {} : JSON.parse(text) };
}

test('all tokens of a client for itself share one count at the API', async () => {
  const client = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  await startOfMinute();
  const statuses: number[] = [];
  for (let index = 0; index < 5; index += 1) {
    const { body } = await postForm(server, '/oauth/token', client, forToken);
    statuses.push((await requester(server, String(body.access_token))('GET', '/api')).status);
  }
  assert.deepEqual(statuses, [200, 200, 200, 429, 429]);
});

test('users and visitors do not use up the limit of their application, which is ten times larger', async () => {
  const scopes = ['read:accounts', 'write:accounts', 'write:events', 'write:logins'];
  const application = await createTestClient(server, { grantTypes: ['client_credentials'], scopes });
  const send = requester(server, await clientToken(server, application, scopes));
  await startOfMinute();
  for (let index = 0; index < 40; index += 1) {
    assert.equal((await send('GET', `/login-requests/${newSecret()}`)).status, 404);
    assert.equal((await send('POST', `/login-requests/${newSecret()}/reject`, { json: {} })).status, 404);
    assert.equal((await send('POST', '/events', { json: {} })).status, 422);
    assert.equal((await send('GET', '/accounts')).status, 200);
    assert.equal((await send('DELETE', `/grants/${newId()}`)).status, 404);
  }
  const statuses: number[] = [];
  for (let index = 0; index < 32; index += 1) statuses.push((await send('GET', '/api')).status);
  assert.deepEqual(statuses, [...Array(30).fill(200), 429, 429]);
  assert.equal((await send('GET', `/login-requests/${newSecret()}`)).status, 404);
});

test('a client has one limit over the token, introspection and revocation endpoints, from any address', async () => {
  const client = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  const other = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  const authorization = basic(client.id, client.secret ?? '');
  await startOfMinute();
  const paths = ['/oauth/token', '/oauth/introspect', '/oauth/revoke'];
  for (let index = 0; index < 30; index += 1) {
    const path = paths[index % 3] as string;
    const form = path === '/oauth/token' ? forToken : { token: 'unknown' };
    const { status, headers } = await ask(path, `192.0.2.${index}`, { authorization }, form);
    assert.equal(status, 200, path);
    assert.equal(headers.get('ratelimit-limit'), '30');
    assert.equal(headers.get('ratelimit-remaining'), String(29 - index));
  }
  for (const path of paths) {
    const { status, headers, body } = await ask(path, '198.51.100.1', { authorization }, forToken);
    assert.equal(status, 429);
    assert.equal(body.error, 'temporarily_unavailable');
    assert.ok(Number(headers.get('retry-after')) > 0);
    assert.equal(headers.get('ratelimit-remaining'), '0');
    assert.equal(headers.get('cache-control'), 'no-store');
  }
  // The client is named in the body, or with another secret.
  const named = { ...forToken, client_id: client.id, client_secret: client.secret ?? '' };
  assert.equal((await ask('/oauth/token', '198.51.100.1', {}, named)).status, 429);
  const others = basic(other.id, other.secret ?? '');
  assert.equal((await ask('/oauth/token', '198.51.100.1', { authorization: others }, forToken)).status, 200);
});

test('an unauthenticated request counts for its address and uses up no client’s limit', async () => {
  const client = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  const wrong = basic(client.id, 'wrong');
  await startOfMinute();
  for (const path of ['/oauth/token', '/oauth/introspect', '/oauth/revoke']) {
    const { status } = await ask(path, '203.0.113.1', { authorization: wrong }, { ...forToken, token: 'x' });
    assert.equal(status, 401);
  }
  assert.equal((await ask('/oauth/token', '203.0.113.1', { authorization: wrong }, forToken)).status, 429);
  assert.equal((await ask('/oauth/introspect', '203.0.113.1', {}, { token: 'x' })).status, 429);
  // Requests of many networks name the client, whose own limit is not affected.
  for (let index = 0; index < 60; index += 1) {
    await ask('/oauth/token', `2001:db8:${index}::1`, { authorization: wrong }, forToken);
  }
  const right = basic(client.id, client.secret ?? '');
  const { status, headers } = await ask('/oauth/token', '203.0.113.2', { authorization: right }, forToken);
  assert.deepEqual([status, headers.get('ratelimit-remaining')], [200, '29']);
});

test('a public client’s limit is not used up from another address', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const form = {
    grant_type: 'authorization_code',
    code: 'none',
    code_verifier: 'x'.repeat(43),
    client_id: client.id,
  };
  await startOfMinute();
  const statuses: number[] = [];
  for (let index = 0; index < 5; index += 1) {
    statuses.push((await ask('/oauth/token', '203.0.113.9', {}, form)).status);
  }
  assert.deepEqual(statuses, [400, 400, 400, 429, 429]);
  assert.equal((await ask('/oauth/token', '203.0.113.10', {}, form)).status, 400);
});

test('attack: a stranger who names a client but is refused before authentication uses up none of its limit', async () => {
  const client = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  await startOfMinute();
  const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const unsigned = `${part({ alg: 'none' })}.${part({ sub: client.id })}.`;
  for (const header of ['oauth-client-attestation', 'oauth-client-attestation-pop']) {
    for (let index = 0; index < 20; index += 1) {
      const headers = { [header]: unsigned };
      await ask('/oauth/token', `192.0.2.${index}`, headers, { ...forToken, client_id: client.id });
    }
  }
  const authorization = basic(client.id, client.secret ?? '');
  const { status, headers } = await ask('/oauth/token', '198.51.100.7', { authorization }, forToken);
  assert.deepEqual([status, headers.get('ratelimit-remaining')], [200, '29']);
});

test('attack: a client past its limit stays limited when its body uses another character set', async () => {
  const client = await createTestClient(server, {
    authMethod: 'client_secret_post',
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  const form = { ...forToken, client_id: client.id, client_secret: client.secret ?? '' };
  await startOfMinute();
  for (let index = 0; index < 30; index += 1) {
    assert.equal((await ask('/oauth/token', `192.0.2.${index}`, {}, form)).status, 200);
  }
  assert.equal((await ask('/oauth/token', '192.0.2.40', {}, form)).status, 429);
  for (const charset of ['utf-16le', 'UTF-16', 'iso-8859-1']) {
    const response = await fetch(`${server.baseUrl}/oauth/token`, {
      method: 'POST',
      headers: {
        'content-type': `application/x-www-form-urlencoded; charset=${charset}`,
        'x-forwarded-for': '192.0.2.41',
      },
      body: Buffer.from(new URLSearchParams(form).toString(), 'utf16le'),
    });
    assert.doesNotMatch(await response.text(), /access_token/, charset);
  }
});

test('attack: one address with many public clients gets no more than one authenticated client', async () => {
  const form = { grant_type: 'refresh_token', refresh_token: 'none' };
  const clients = await Promise.all(
    Array.from({ length: 12 }, () => createTestClient(server, { authMethod: 'none' })),
  );
  await startOfMinute();
  const statuses: number[] = [];
  for (const { id } of clients) {
    for (let index = 0; index < 3; index += 1) {
      // Empty credentials count as no authentication.
      const named = { ...form, client_id: id, ...(index === 2 ? { client_secret: '' } : {}) };
      statuses.push((await ask('/oauth/token', '203.0.113.50', {}, named)).status);
    }
  }
  assert.equal(statuses.filter((status) => status !== 429).length, 30);
  assert.equal(
    (await ask('/oauth/token', '203.0.113.51', {}, { ...form, client_id: clients[0]?.id ?? '' })).status,
    400,
  );
  // An IPv6 site is counted as a whole.
  const one = clients[1]?.id ?? '';
  const ofSite: number[] = [];
  for (let index = 0; index < 12; index += 1) {
    ofSite.push(
      (await ask('/oauth/token', `2001:db8:77:${index}::1`, {}, { ...form, client_id: one })).status,
    );
  }
  assert.equal(ofSite.filter((status) => status !== 429).length, 9);
});

/** A client that may introspect the tokens of others. */
function createApi() {
  return createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:tokens'],
    redirectUris: [],
  });
}

test('attack: tokens that strangers send to an API use up neither its limit nor its users’ access', async () => {
  const api = await createApi();
  const app = await createTestClient(server, { metadata: { access_token_format: 'opaque' } });
  const authorization = basic(api.id, api.secret ?? '');
  const introspect = async (token: string) => {
    const { status, body } = await ask('/oauth/introspect', '192.0.2.1', { authorization }, { token });
    return status === 200 ? body.active : status;
  };
  await startOfMinute();
  const known = String((await postForm(server, '/oauth/token', app, forToken)).body.access_token);
  assert.ok(!known.includes('.'));
  assert.equal(await introspect(known), true);
  const answers: unknown[] = [];
  for (let index = 0; index < 20; index += 1) answers.push(await introspect(`random ${index}`));
  for (let index = 0; index < 20; index += 1) answers.push(await introspect(newOpaqueToken()));
  assert.deepEqual(answers.slice(0, 30), Array(30).fill(false));
  assert.deepEqual(answers.slice(30), Array(10).fill(429));
  assert.equal(await introspect(known), true, 'a token that was active before');
  const signed = await mintAccessToken(server, { client: app, scopes: ['read:posts'] });
  assert.equal(await introspect(signed.accessToken), true, 'a token with a signature');
  const { status } = await ask(
    '/oauth/token',
    '192.0.2.2',
    { authorization },
    { grant_type: 'client_credentials' },
  );
  assert.equal(status, 200, 'the API’s own tokens');
});

test('attack: one holder’s tokens do not use up an API’s introspections of others’ tokens', async () => {
  const api = await createApi();
  const authorization = basic(api.id, api.secret ?? '');
  const [app, other] = [await createTestClient(server), await createTestClient(server)];
  const [greedy, user] = [await createTestAccount(server), await createTestAccount(server)];
  const introspect = async (client: { id: string }, account?: { id: string }) => {
    const holder = { client, scopes: ['read:posts'], ...(account === undefined ? {} : { account }) };
    const { accessToken: token } = await mintAccessToken(server, holder);
    return (await ask('/oauth/introspect', '192.0.2.1', { authorization }, { token })).status;
  };
  const ofOneLimit = [...Array(30).fill(200), 429, 429];
  for (const account of [greedy, undefined]) {
    await startOfMinute();
    const statuses: number[] = [];
    for (let index = 0; index < 32; index += 1) statuses.push(await introspect(app, account));
    assert.deepEqual(statuses, ofOneLimit);
    assert.equal(await introspect(app, user), 200, 'another user of the app');
    assert.equal(await introspect(other), 200, 'another app');
  }
});

test('a client without read:tokens has one limit for all its requests, whatever it introspects', async () => {
  const client = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  const authorization = basic(client.id, client.secret ?? '');
  await startOfMinute();
  for (let index = 0; index < 30; index += 1) {
    const form = { token: newOpaqueToken() };
    assert.equal((await ask('/oauth/introspect', '192.0.2.1', { authorization }, form)).status, 200);
  }
  assert.equal((await ask('/oauth/token', '192.0.2.1', { authorization }, forToken)).status, 429);
});

test('attack: one /64 does not use up its /48’s limit', async () => {
  const from = (address: string) =>
    ask('/oauth/par', address, {}, { client_id: 'none' }).then(({ status }) => status);
  await startOfMinute();
  for (let index = 0; index < 12; index += 1) await from('2001:db8:99:1::1');
  assert.equal(await from('2001:db8:99:1::2'), 429);
  assert.equal(await from('2001:db8:99:2::1'), 401);
});

/** An app of the operator that redeems codes. */
function createWebApp() {
  return createTestClient(server, {
    grantTypes: ['authorization_code', 'client_credentials'],
    scopes: ['read:posts'],
  });
}

test('attack: requests without credentials do not keep out an app that has authenticated from their address', async () => {
  const [app, unknown] = [await createWebApp(), await createWebApp()];
  const address = '203.0.113.60';
  const authorization = basic(app.id, app.secret ?? '');
  await startOfMinute();
  assert.equal((await ask('/oauth/token', address, { authorization }, forToken)).status, 200);
  for (let index = 0; index < 5; index += 1) await ask('/oauth/token', address, {}, { grant_type: 'x' });
  assert.equal((await ask('/oauth/token', address, {}, { grant_type: 'x' })).status, 429);
  for (const path of ['/oauth/token', '/oauth/introspect', '/oauth/revoke']) {
    const { status } = await ask(path, address, { authorization }, { ...forToken, token: 'x' });
    assert.equal(status, 200, path);
  }
  const others = { authorization: basic(unknown.id, unknown.secret ?? '') };
  assert.equal(
    (await ask('/oauth/token', address, others, forToken)).status,
    429,
    'an app that is new there',
  );
  // Guesses of its secret from there have a limit, too.
  const wrong = { authorization: basic(app.id, 'wrong') };
  const statuses: number[] = [];
  for (let index = 0; index < 32; index += 1) {
    statuses.push((await ask('/oauth/token', address, wrong, forToken)).status);
  }
  assert.deepEqual(statuses, [...Array(30).fill(401), 429, 429]);
  const elsewhere = await ask('/oauth/token', '203.0.113.61', { authorization }, forToken);
  assert.equal(elsewhere.status, 200);
});

test('attack: what strangers begin at an app’s address does not count for its pushed and device requests', async () => {
  const app = await createTestClient(server, {
    grantTypes: ['authorization_code', 'client_credentials', 'urn:ietf:params:oauth:grant-type:device_code'],
    scopes: ['read:posts'],
  });
  const address = '203.0.113.70';
  const headers = { authorization: basic(app.id, app.secret ?? '') };
  const pushed = {
    client_id: app.id,
    response_type: 'code',
    redirect_uri: app.redirectUri,
    scope: 'read:posts',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
  };
  await startOfMinute();
  assert.equal((await ask('/oauth/token', address, headers, forToken)).status, 200);
  for (let index = 0; index < 5; index += 1) await ask('/oauth/par', address, {}, { client_id: 'none' });
  assert.equal((await ask('/oauth/par', address, {}, { client_id: 'none' })).status, 429);
  const statuses: number[] = [];
  for (let index = 0; index < 32; index += 1) {
    const [path, form] =
      index % 2 === 0 ? ['/oauth/par', pushed] : ['/oauth/device', { scope: 'read:posts' }];
    statuses.push((await ask(path as string, address, headers, form as Record<string, string>)).status);
  }
  assert.deepEqual(new Set(statuses.slice(0, 30)), new Set([200, 201]));
  assert.deepEqual(statuses.slice(30), [429, 429]);
  assert.equal((await ask('/oauth/token', address, headers, forToken)).status, 200);
});

test('a client that registered itself begins as many flows as its address may', async () => {
  const app = await createTestClient(server, {
    origin: 'registration',
    grantTypes: ['urn:ietf:params:oauth:grant-type:device_code'],
    scopes: ['read:posts'],
  });
  const headers = { authorization: basic(app.id, app.secret ?? '') };
  await startOfMinute();
  const statuses: number[] = [];
  for (let index = 0; index < 5; index += 1) {
    statuses.push((await ask('/oauth/device', '203.0.113.80', headers, { scope: 'read:posts' })).status);
  }
  assert.deepEqual(statuses, [200, 200, 200, 429, 429]);
});

test('attack: codes that visitors invent do not use up the limit of the app that redeems them', async () => {
  const app = await createWebApp();
  const account = await createTestAccount(server);
  const headers = { authorization: basic(app.id, app.secret ?? '') };
  const redeem = (code: string, verifier = 'x'.repeat(43)) =>
    ask('/oauth/token', '203.0.113.90', headers, {
      grant_type: 'authorization_code',
      code,
      redirect_uri: app.redirectUri,
      code_verifier: verifier,
    });
  const issued = await obtainCode(server, { account, client: app, scopes: ['read:posts'] });
  await startOfMinute();
  const statuses: number[] = [];
  for (let index = 0; index < 32; index += 1) statuses.push((await redeem(newOpaqueToken())).status);
  assert.deepEqual(statuses, [...Array(30).fill(400), 429, 429]);
  assert.equal((await ask('/oauth/token', '203.0.113.90', headers, forToken)).status, 200);
  assert.equal((await redeem(issued.code, issued.verifier)).status, 200, 'a code of this server');
});

test('attack: images and scripts of other sites use up no limit of their visitors’ networks', async () => {
  const app = await createTestClient(server, { authMethod: 'none' });
  const address = '203.0.113.98';
  const { challenge } = createPkce();
  const url = authorizationUrl(server, app, { code_challenge: challenge, code_challenge_method: 'S256' });
  // The client of Node.js sets these headers itself.
  const send = (
    target: string,
    method: string,
    fetchMetadata: Record<string, string>,
    body = 'grant_type=x',
  ) =>
    new Promise<number | undefined>((resolve, reject) => {
      const type = { 'content-type': 'application/x-www-form-urlencoded' };
      const headers = { 'x-forwarded-for': address, ...type, ...fetchMetadata };
      request(target, { method, headers }, (response) => resolve(response.resume().statusCode))
        .on('error', reject)
        .end(method === 'POST' ? body : '');
    });
  const embedded = { 'sec-fetch-mode': 'no-cors', 'sec-fetch-site': 'cross-site' };
  const navigation = { 'sec-fetch-mode': 'navigate', 'sec-fetch-site': 'cross-site' };
  await startOfMinute();
  for (let index = 0; index < 5; index += 1) {
    assert.equal(await send(url, 'GET', embedded), 403);
    assert.equal(await send(`${server.baseUrl}/oauth/token`, 'POST', embedded), 403);
  }
  // Apps revoke tokens by beacons, which have a limit of their own.
  const revoke = `${server.baseUrl}/oauth/revoke`;
  const statuses = [];
  for (let index = 0; index < 5; index += 1) statuses.push(await send(revoke, 'POST', embedded));
  assert.deepEqual(statuses, [400, 400, 400, 429, 429]);
  for (const [mode, destination] of [
    ['cors', 'empty'],
    ['cors', 'image'],
    ['navigate', 'iframe'],
  ]) {
    const headers = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': mode, 'sec-fetch-dest': destination };
    for (let index = 0; index < 5; index += 1) {
      await send(url, 'GET', headers as Record<string, string>);
      await send(`${server.baseUrl}/oauth/token`, 'POST', headers as Record<string, string>);
    }
  }
  assert.equal(await send(url, 'GET', { ...navigation, 'sec-fetch-dest': 'document' }), 303);
  assert.equal(await send(`${server.baseUrl}/oauth/token`, 'POST', {}), 400);
  // A page of the app itself.
  const own = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' };
  const body = `grant_type=refresh_token&refresh_token=none&client_id=${app.id}`;
  const { origin } = new URL(app.redirectUri);
  assert.equal(await send(`${server.baseUrl}/oauth/token`, 'POST', { ...own, origin }, body), 400);
  // Anybody can register an app for a page.
  for (let index = 0; index < 5; index += 1)
    await send(`${server.baseUrl}/oauth/device`, 'POST', { ...own, origin }, `client_id=${app.id}`);
  assert.equal(await send(url, 'GET', { ...navigation, 'sec-fetch-dest': 'document' }), 303);
});

test('attack: headers of a browser do not lift the limit of an app with credentials', async () => {
  const app = await createWebApp();
  const authorization = basic(app.id, app.secret ?? '');
  await startOfMinute();
  const statuses: (number | undefined)[] = [];
  for (let index = 0; index < 32; index += 1) {
    const status = await new Promise<number | undefined>((resolve, reject) => {
      const headers = {
        authorization,
        'content-type': 'application/x-www-form-urlencoded',
        'x-forwarded-for': `192.0.2.${100 + index}`,
        ...{ 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' },
      };
      request(`${server.baseUrl}/oauth/token`, { method: 'POST', headers }, (response) =>
        resolve(response.resume().statusCode),
      )
        .on('error', reject)
        .end(new URLSearchParams(forToken).toString());
    });
    statuses.push(status);
  }
  assert.deepEqual(statuses, [...Array(30).fill(200), 429, 429]);
});
