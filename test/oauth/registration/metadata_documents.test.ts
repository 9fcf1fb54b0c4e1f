/** Client ID metadata documents: apps known by the URL of their metadata, fetched over real TLS. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { after, test } from 'node:test';
import { exportJWK, generateKeyPair } from 'jose';
import { sql } from 'kysely';
import * as openid from 'openid-client';
import { pino } from 'pino';
import { removeUnusedClients } from '../../../src/clients/self_registered.ts';
import { countDocument, registrationLimits } from '../../../src/oauth/registration/registration_limit.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { startServer } from '../../../src/server.ts';
import { TestBrowser } from '../../support/browser/browser.ts';
import { ageClients } from '../../support/clients/age.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
  type TestClient,
} from '../../support/clients/oauth.ts';
import { signInByOpenidClient } from '../../support/clients/openid_client.ts';
import { type Document, siteEgress, startSite } from '../../support/network/site.ts';
import { freePort, startTestServer, type TestServer, testSecret } from '../../support/servers/server.ts';
import { until } from '../../support/webhooks/apps.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const account = await createTestAccount(server);
const redirectUri = 'https://reader.apps.example/callback';

function metadataOf(id: string, fields: Record<string, unknown> = {}) {
  return {
    client_id: id,
    client_name: 'Reader by document',
    redirect_uris: [redirectUri],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
    ...fields,
  };
}

/** An app with a metadata document on the site. */
function serveClient(
  path: string,
  fields: Record<string, unknown> = {},
  document: Document = {},
): TestClient {
  const id = site.url(path);
  site.serve(path, { body: metadataOf(id, fields), ...document });
  return { id, redirectUri, authMethod: 'none', secret: null } as TestClient;
}

async function ask(clientId: string, on: TestServer = server, redirect = redirectUri) {
  await sql`delete from sign_in_failures`.execute(on.db);
  const { challenge } = createPkce();
  const url = authorizationUrl(
    on,
    { id: clientId, redirectUri: redirect },
    {
      code_challenge: challenge,
      code_challenge_method: 'S256',
      scope: 'read:posts',
    },
  );
  return new TestBrowser(on.baseUrl).open(url);
}

async function refused(clientId: string, on: TestServer = server): Promise<string> {
  const page = await ask(clientId, on);
  assert.equal(page.leftTo, null, clientId);
  assert.equal(page.response.status, 400, clientId);
  assert.match(page.response.headers.get('content-type') ?? '', /^text\/html/);
  assert.match(page.text, /invalid_client/);
  return page.text;
}

test('oauth 88: an app known by its document completes the code flow, refreshes and calls the API', async () => {
  const client = serveClient('/client.json');
  const { accessToken, refreshToken, scope } = await authorize(server, {
    account,
    client,
    scopes: ['openid', 'read:posts'],
  });
  assert.equal(scope, 'openid read:posts');
  const api = await fetch(`${server.baseUrl}/api`, { headers: { authorization: `Bearer ${accessToken}` } });
  assert.equal(((await api.json()) as { client: { id: string } }).client.id, client.id);
  const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
  assert.equal((await postForm(server, '/oauth/token', client, form)).status, 200);
  const metadata = await fetch(`${server.baseUrl}/.well-known/oauth-authorization-server`);
  const { client_id_metadata_document_supported: supported } = (await metadata.json()) as Record<
    string,
    unknown
  >;
  assert.equal(supported, true);
});

test('oauth 88: a missing authentication method in the document means none', async () => {
  const client = serveClient('/no-method.json', { token_endpoint_auth_method: undefined });
  assert.ok((await authorize(server, { account, client, scopes: ['read:posts'] })).accessToken);
});

test('oauth 88: the document’s scopes limit the app, and unknown scopes are ignored', async () => {
  const client = serveClient('/scope.json', { scope: 'read:posts write:everything' });
  assert.equal((await authorize(server, { account, client, scopes: [] })).scope, 'read:posts');
  const more = await authorize(server, { account, client, scopes: ['write:posts'] }).catch(String);
  assert.match(String(more), /invalid_scope/);
});

test('oauth 88: an id that is not a metadata URL is no client, and nothing is fetched', async () => {
  const { host } = new URL(site.url('/'));
  site.serve('/', { body: metadataOf(`https://${host}/`) });
  for (const id of [
    `http://${host}/client.json`,
    `https://${host}`,
    `https://${host}/`,
    `https://${host}/client.json#top`,
    `https://user@${host}/client.json`,
    `https://${host}/a/../client.json`,
    `https://${host}/%2e%2e/client.json`,
    `https://${host}/./client.json`,
    `HTTPS://${host}/client.json`,
    `https://${host}\\client.json`,
  ]) {
    await refused(id);
  }
  assert.equal(site.requests('/'), 0);
});

for (const [what, document] of [
  ['another id', { body: metadataOf('https://reader.apps.example/other.json') }],
  ['no id', { body: metadataOf(undefined as unknown as string) }],
  ['a secret', { extra: { client_secret: 'shared' } }],
  ['a secret’s expiry', { extra: { client_secret_expires_at: 0 } }],
  ['the time of a registration', { extra: { client_id_issued_at: 1 } }],
  ['no time of a registration', { extra: { client_id_issued_at: null } }],
  ['a registration access token', { extra: { registration_access_token: 'made-up' } }],
  ['the address of a registration', { extra: { registration_client_uri: 'https://reader.apps.example/' } }],
  ['scopes as the server keeps them', { extra: { document_scope: 'read:posts' } }],
  ['a method with a secret', { extra: { token_endpoint_auth_method: 'client_secret_post' } }],
  ['a redirect in the clear', { extra: { redirect_uris: ['http://reader.apps.example/cb'] } }],
  ['a redirect by javascript', { extra: { redirect_uris: ['javascript:alert(1)'] } }],
  ['no redirect', { extra: { redirect_uris: [] } }],
  ['a name that cannot be seen', { extra: { client_name: '\u202E' } }],
  ['status 404', { status: 404 }],
  ['status 201', { status: 201 }],
  ['status 500', { status: 500 }],
  ['a redirect', { status: 302, headers: { location: '/client.json' } }],
  ['no JSON', { body: '<html>' }],
  ['an array', { body: [] }],
  ['too many bytes', { extra: { padding: 'x'.repeat(6_000) } }],
  ['far too many bytes', { body: 'x'.repeat(1_000_000) }],
] as [string, Document & { extra?: Record<string, unknown> }][]) {
  test(`oauth 88: a document with ${what} is an invalid_client page, and is fetched again`, async () => {
    const path = `/${encodeURIComponent(what)}.json`;
    const { extra, ...rest } = document;
    site.serve(path, { body: metadataOf(site.url(path), extra), ...rest });
    await refused(site.url(path));
    assert.equal(site.requests(path), 1);
    // Failures are not cached: a corrected document works at once.
    serveClient(path);
    assert.match((await ask(site.url(path))).text, /name="password"/);
  });
}

test('oauth 88: a document gets no machine token and no grant type reserved for the operator', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'k', alg: 'ES256', use: 'sig' }] };
  const machine = { token_endpoint_auth_method: 'private_key_jwt', jwks, redirect_uris: [redirectUri] };
  for (const [at, fields] of [
    {},
    { client_id_issued_at: 1 },
    { client_id_issued_at: 0 },
    { registration_access_token: 'x', registration_client_uri: 'https://reader.apps.example/' },
  ].entries()) {
    const { id } = serveClient(`/machine-${at}.json`, {
      ...machine,
      grant_types: ['authorization_code', 'client_credentials', 'password', 'implicit'],
      ...fields,
    });
    const config = new openid.Configuration(
      { issuer: server.baseUrl, token_endpoint: `${server.baseUrl}/oauth/token` },
      id,
      undefined,
      openid.PrivateKeyJwt({ key: privateKey, kid: 'k' }),
    );
    openid.allowInsecureRequests(config);
    const asked = openid.clientCredentialsGrant(config, { scope: 'read:posts' });
    const error = at === 0 ? 'unauthorized_client' : 'invalid_client';
    await assert.rejects(asked, (thrown: { error?: string; cause?: { error?: string } }) => {
      assert.equal(thrown.error ?? thrown.cause?.error, error, JSON.stringify(fields));
      return true;
    });
  }
});

test('server-only metadata is ignored in a registration', async () => {
  const response = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      redirect_uris: [redirectUri],
      client_id: 'chosen',
      client_id_issued_at: 1,
      client_secret: 'chosen',
      client_secret_expires_at: 1,
      registration_access_token: 'chosen',
      registration_client_uri: 'https://reader.apps.example/',
      document_scope: 'write:events',
    }),
  });
  const body = (await response.json()) as Record<string, unknown>;
  assert.equal(response.status, 201, JSON.stringify(body));
  assert.notEqual(body.client_id_issued_at, 1);
  assert.ok(!JSON.stringify(body).includes('chosen'));
  assert.equal(body.document_scope, undefined);
  const { rows } = await sql<{ metadata: object }>`
    select metadata from clients where id = ${String(body.client_id)}`.execute(server.db);
  assert.doesNotMatch(JSON.stringify(rows[0]?.metadata), /chosen|document_scope|registration_/);
  const machine = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      redirect_uris: [redirectUri],
      client_id_issued_at: 1,
      grant_types: ['client_credentials'],
    }),
  });
  assert.equal(machine.status, 400);
});

test('oauth 88: no connection goes to a host with an internal address, and the page reveals nothing', async () => {
  for (const name of ['inside', 'cloud', 'half']) {
    const path = `/${name}.json`;
    const id = site.url(path, name);
    site.serve(path, { body: metadataOf(id) });
    assert.doesNotMatch(await refused(id), /10\.0|169\.254|192\.168|refused|timed? ?out/i);
    assert.equal(site.requests(path), 0);
  }
  for (const host of ['10.0.0.1', '[::ffff:10.0.0.1]', '169.254.169.254', '[fe80::1]', '0.0.0.0']) {
    await refused(`https://${host}/client.json`);
  }
});

test('oauth 88: loopback is internal outside development', async () => {
  const production = await startTestServer(
    { after },
    { NUNCIO_INSECURE_SUBSCRIBERS: '0' },
    'dev',
    undefined,
    siteEgress,
  );
  serveClient('/loopback.json');
  await refused(site.url('/loopback.json'), production);
  assert.equal(site.requests('/loopback.json'), 0);
});

test('oauth 88: a document is cached as long as its headers say, within limits', async () => {
  const client = serveClient('/kept.json', {}, { headers: { 'cache-control': 'max-age=600' } });
  await ask(client.id);
  await ask(client.id);
  assert.equal(site.requests('/kept.json'), 1);
  const brief = serveClient('/brief.json', {}, { headers: { 'cache-control': 'no-store' } });
  await Promise.all([ask(brief.id), ask(brief.id), ask(brief.id)]);
  assert.equal(site.requests('/brief.json'), 1, 'the least is a minute, and many at once ask once');
});

test('oauth 88: a newer document replaces the cached one', async () => {
  const path = '/changing.json';
  const client = serveClient(path);
  assert.match((await ask(client.id)).text, /Reader by document/);
  site.serve(path, { body: metadataOf(client.id, { client_name: 'Renamed' }) });
  // A node that has not fetched the document finds what another node stored in the database.
  const port = await freePort();
  const config = { ...server.config, port, baseUrl: `http://127.0.0.1:${port}` };
  const node = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: server.databaseUrl,
    secret: testSecret,
    logger: pino({ level: 'silent' }),
    egress: siteEgress,
  });
  try {
    const page = await ask(client.id, { ...server, config, baseUrl: config.baseUrl, running: node });
    assert.match(page.text, /Renamed/);
    assert.doesNotMatch(page.text, /Reader by document/);
    // The first node uses its cached document, and does not overwrite what the other node stored.
    for (let time = 0; time < 2; time += 1) assert.equal((await ask(client.id)).response.status, 200);
  } finally {
    await node.close();
  }
  assert.equal(site.requests(path), 2);
  const { rows } = await sql<{ name: string }>`select name from clients where id = ${client.id}`.execute(
    server.db,
  );
  assert.deepEqual(rows, [{ name: 'Renamed' }]);
});

test('oauth 88: an app that the operator disabled is no client; one that it registered is unchanged', async () => {
  const client = serveClient('/disabled.json');
  await ask(client.id);
  await sql`update clients set disabled_at = now() where id = ${client.id}`.execute(server.db);
  let text = '';
  for (let tries = 0; tries < 50 && !text.includes('invalid_client'); tries += 1)
    text = (await ask(client.id)).text;
  assert.match(text, /invalid_client/);
  const own = await createTestClient(server, { id: site.url('/own.json'), name: 'The operator’s' });
  site.serve('/own.json', { body: metadataOf(own.id) });
  assert.match((await ask(own.id, server, own.redirectUri)).text, /The operator’s/);
  assert.equal(site.requests('/own.json'), 0);
});

test('attack: a suspended app stays suspended when it waits until unused apps are deleted', async () => {
  const client = serveClient('/suspended.json');
  const other = serveClient('/unused.json');
  await ask(client.id);
  await ask(other.id);
  await sql`update clients set suspended_at = now() where id = ${client.id}`.execute(server.db);
  await ageClients(server, sql`origin = 'document'`);
  assert.ok((await removeUnusedClients(server.db, 1_000)) > 0);
  const { rows } = await sql`select id from clients where id in (${client.id}, ${other.id})`.execute(
    server.db,
  );
  assert.deepEqual(rows, [{ id: client.id }]);
  // The server hears of the suspension a little later.
  await until(
    async () => (await ask(client.id)).response.status,
    (status) => status === 400,
  );
  await refused(client.id);
  const { rows: kept } = await sql`
    select from clients where id = ${client.id} and suspended_at is not null`.execute(server.db);
  assert.equal(kept.length, 1);
});

test('oauth 88: the token endpoint treats an app without a valid document as unknown', async () => {
  site.serve('/gone.json', { status: 410 });
  const form = { grant_type: 'refresh_token', refresh_token: 'made-up', client_id: site.url('/gone.json') };
  const { status, body } = await postForm(server, '/oauth/token', null, form);
  const unknown = await postForm(server, '/oauth/token', null, { ...form, client_id: 'nobody' });
  assert.deepEqual([status, body], [unknown.status, unknown.body]);
  assert.equal(status, 401);
});

test('metadata documents leave no trace when they are off', async () => {
  const platform = await loadPlatform(null);
  const oauth = { ...platform.oauth, clientMetadataDocuments: false };
  const closed = await startTestServer({ after }, {}, 'dev', { ...platform, oauth }, siteEgress);
  serveClient('/closed.json');
  await refused(site.url('/closed.json'), closed);
  assert.equal(site.requests('/closed.json'), 0);
  const metadata = await fetch(`${closed.baseUrl}/.well-known/oauth-authorization-server`);
  assert.ok(!('client_id_metadata_document_supported' in ((await metadata.json()) as object)));
});

test('oauth 88: the document’s key authenticates the app, fetched from where the document says', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const key = { ...(await exportJWK(publicKey)), kid: 'k1', alg: 'ES256', use: 'sig' };
  site.serve('/keys', { body: { keys: [key] } });
  const client = serveClient('/signed.json', {
    token_endpoint_auth_method: 'private_key_jwt',
    jwks_uri: site.url('/keys'),
  });
  const config = await openid.discovery(
    new URL(server.baseUrl),
    client.id,
    undefined,
    openid.PrivateKeyJwt({ key: privateKey, kid: 'k1' }),
    { execute: [openid.allowInsecureRequests] },
  );
  const tokens = await signInByOpenidClient(server, config, account, redirectUri);
  assert.equal(tokens.claims()?.sub, account.id);
});

test('oauth 89: consent shows the hosts of app and redirect, and warns when the redirect is loopback', async () => {
  const consent = async (client: TestClient) => {
    const { challenge } = createPkce();
    const url = authorizationUrl(server, client, {
      code_challenge: challenge,
      code_challenge_method: 'S256',
      scope: 'read:posts',
    });
    const browser = new TestBrowser(server.baseUrl);
    const login = await browser.open(url);
    return browser.submit(login, { email: account.email, password: account.password, action: 'login' });
  };
  const { host } = new URL(site.url('/'));
  const remote = await consent(serveClient('/consent.json'));
  assert.ok(remote.text.includes(`>${host}<`));
  assert.match(remote.text, />reader\.apps\.example</);
  assert.doesNotMatch(remote.text, /class="notice"/);
  const local = serveClient('/local.json', { redirect_uris: ['http://127.0.0.1/cb', 'http://localhost/cb'] });
  const page = await consent({ ...local, redirectUri: 'http://127.0.0.1:4711/cb' });
  assert.ok(page.text.includes(`>${host}<`));
  assert.match(page.text, />127\.0\.0\.1:4711</);
  assert.match(page.text, /class="notice"/);
});

test('oauth 88: an error of an app with a document is a page with a link, no redirect', async () => {
  const client = serveClient('/unprompted.json');
  const url = authorizationUrl(server, client, {
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    scope: 'read:posts',
    prompt: 'none',
  });
  const page = await new TestBrowser(server.baseUrl).open(url);
  assert.equal(page.leftTo, null);
  assert.match(page.text, /<a class="button" href="[^"]*error=login_required/);
});

/** Metadata that registration rejects (RFC 7591 section 3.2.2), in a document. */
const faults: Record<string, Record<string, unknown>> = {
  fragment: { redirect_uris: [`${redirectUri}#top`] },
  'plain http elsewhere': { redirect_uris: ['http://app.example/cb'] },
  'javascript:': { redirect_uris: ['javascript:alert(1)//'] },
  'data:': { redirect_uris: ['data:text/html,x'] },
  credentials: { redirect_uris: ['https://user:pw@app.example/cb'] },
  'no URI': { redirect_uris: ['/callback'] },
  'a number': { redirect_uris: [7] },
  'no redirect': { redirect_uris: [] },
  'too many redirects': { redirect_uris: Array.from({ length: 21 }, (_, i) => `${redirectUri}/${i}`) },
  'the grant type without code': { response_types: [] },
  'an implicit response': { grant_types: ['implicit'], response_types: ['id_token'] },
  'an unknown response type': { response_types: ['token'] },
  'an unknown method': { token_endpoint_auth_method: 'client_secret_jwt' },
  'a name that cannot be seen': { client_name: 'abc\u202Egnp' },
  'terms by javascript': { tos_uri: 'javascript:1' },
  'keys in the clear': { token_endpoint_auth_method: 'private_key_jwt', jwks_uri: 'http://app.example/jwks' },
  'text that cannot be stored': { client_name: 'half \ud800 of a pair' },
};

for (const [what, fields] of Object.entries(faults)) {
  test(`oauth 86: a document with ${what} makes no client: a page, invalid_client for the app, and nothing stored`, async () => {
    const { id } = serveClient(`/fault-${encodeURIComponent(what)}.json`, fields);
    await refused(id);
    const form = { grant_type: 'refresh_token', refresh_token: 'x', client_id: id };
    const { status, body } = await postForm(server, '/oauth/token', null, form);
    assert.deepEqual([status, body.error], [401, 'invalid_client']);
    const { rows } = await sql`select from clients where id = ${id}`.execute(server.db);
    assert.equal(rows.length, 0);
  });
}

test('oauth 86: reserved grant types, code without its grant type and statements are removed from a document', async () => {
  const machine = serveClient('/fault-grant-types.json', {
    grant_types: ['authorization_code', 'client_credentials', 'password'],
  });
  assert.match((await ask(machine.id)).text, /name="password"/);
  const { rows } = await sql<{ grant_types: string[] }>`
    select grant_types from clients where id = ${machine.id}`.execute(server.db);
  assert.deepEqual(rows, [{ grant_types: ['authorization_code'] }]);

  const codeless = serveClient('/fault-codeless.json', {
    grant_types: ['refresh_token'],
    response_types: ['code'],
  });
  const page = await ask(codeless.id);
  assert.equal(page.leftTo, null);
  assert.match(page.text, /unauthorized_client/);

  const stated = serveClient('/fault-statement.json', { software_statement: 'e30.e30.c2ln' });
  assert.match((await ask(stated.id)).text, /name="password"/);
  const { rows: kept } = await sql<{ metadata: object }>`
    select metadata from clients where id = ${stated.id}`.execute(server.db);
  assert.doesNotMatch(JSON.stringify(kept), /software_statement/);
});

test('oauth 86: an address that introduces too many apps by documents is rate limited', async () => {
  const known = serveClient('/limit-known.json');
  assert.match((await ask(known.id)).text, /name="password"/);
  await sql`delete from registration_windows`.execute(server.db);
  for (const address of ['127.0.0.1', '::1']) {
    for (let apps = 0; apps < registrationLimits.remote; apps += 1) await countDocument(server.db, address);
  }
  const fresh = serveClient('/limit-fresh.json');
  assert.match(await refused(fresh.id), /too many new apps/i);
  const form = { grant_type: 'refresh_token', refresh_token: 'x', client_id: fresh.id };
  const { status, body } = await postForm(server, '/oauth/token', null, form);
  assert.deepEqual([status, body.error], [401, 'invalid_client']);
  // The limit applies to new apps only.
  assert.match((await ask(known.id)).text, /name="password"/);
  await sql`delete from registration_windows`.execute(server.db);
  assert.match((await ask(fresh.id)).text, /name="password"/);
});

test('attack: pages of other sites that introduce apps leave those of the network alone', async () => {
  await sql`delete from registration_windows`.execute(server.db);
  for (const address of ['127.0.0.1', '::1']) {
    for (let apps = 0; apps < registrationLimits.remote; apps += 1)
      await countDocument(server.db, address, true);
  }
  const fresh = serveClient('/limit-of-page.json');
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const url = authorizationUrl(server, fresh, { ...pkce, scope: 'read:posts' });
  // The client of Node.js sets these headers itself.
  const headers = {
    'sec-fetch-site': 'cross-site',
    'sec-fetch-mode': 'navigate',
    'sec-fetch-dest': 'iframe',
  };
  const [response] = (await once(get(url, { headers }), 'response')) as [IncomingMessage];
  assert.match(await text(response), /too many new apps/i);
  assert.match((await ask(fresh.id)).text, /name="password"/);
});

test('paths of a host that hang for one network hold up no app there for others', async (t) => {
  const behindProxy = { NUNCIO_TRUST_PROXY: '127.0.0.1' };
  const flooded = await startTestServer(t, behindProxy, 'dev', undefined, siteEgress);
  const hanging: (() => void)[] = [];
  const open = (client: Pick<TestClient, 'id' | 'redirectUri'>, network: string) => {
    const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
    const url = authorizationUrl(flooded, client, { ...pkce, scope: 'read:posts' });
    return fetch(url, { redirect: 'manual', headers: { 'x-forwarded-for': network } });
  };
  const refusals = Array.from({ length: 40 }, (_none, index) => {
    const path = `/hangs/${index}`;
    site.serve(path, (_request, response) => hanging.push(() => response.writeHead(404).end()));
    return open({ id: site.url(path), redirectUri }, '192.0.2.1');
  });
  await until(
    async () => hanging.length,
    (length) => length === 7,
  );
  assert.equal((await open(serveClient('/served.json'), '192.0.2.2')).status, 303);
  assert.equal(hanging.length, 7);
  const done = Promise.all(refusals);
  const timer = setInterval(() => {
    for (const respond of hanging.splice(0)) respond();
  }, 1);
  for (const { status } of await done) assert.equal(status, 400);
  clearInterval(timer);
});
