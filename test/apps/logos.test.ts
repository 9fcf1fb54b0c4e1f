/** `/apps/<id>/logo` and `/logos/<digest>`: who may upload a logo, what is accepted, serving and deletion. */

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { TestBrowser } from '../support/browser/browser.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  createPkce,
  createTestClient,
  mintAccessToken,
  type TestClient,
} from '../support/clients/oauth.ts';
import { type ConsoleUser, createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  jpeg,
  losslessWebp,
  png,
  pngChunk,
  pngHeader,
  pngSignature,
  webp,
} from '../support/values/images.ts';

const server = await startTestServer({ after });
const { db } = server;
const description = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'] };

async function createAppOf(user: ConsoleUser): Promise<string> {
  const made = await user.request('POST', '/apps', { json: description });
  assert.equal(made.status, 201, made.text);
  return made.body.client_id;
}

function upload(user: Pick<ConsoleUser, 'request'>, id: string, content: Buffer, type = 'image/png') {
  const headers = { 'content-type': type };
  return user.request('PUT', `/apps/${id}/logo`, { headers, raw: new Uint8Array(content) });
}

async function logoOf(user: ConsoleUser, id: string): Promise<string | undefined> {
  return (await user.request('GET', `/apps/${id}`)).body._links.logo?.href;
}

const show = (path: string, headers: Record<string, string> = {}) =>
  fetch(server.baseUrl + path, { headers });

async function entriesOf(id: string): Promise<{ kind: string; actor: string; details: object }[]> {
  const { rows } = await sql<{ kind: string; actor: string; details: object }>`
    select kind, actor, details from audit_entries
    where client_id = ${id} and kind like 'app.logo%' order by id`.execute(db);
  return rows;
}

test('a member uploads, replaces and removes a logo', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  assert.equal(await logoOf(owner, id), undefined);
  const made = await upload(owner, id, png());
  assert.equal(made.status, 200, made.text);
  const first = made.body._links.logo.href;
  assert.match(first, /^\/logos\/[\w-]{43}$/);
  const shown = await show(first);
  assert.equal(shown.status, 200);
  assert.deepEqual(Buffer.from(await shown.arrayBuffer()), png());
  assert.equal((await owner.request('GET', '/apps')).body.items[0]._links.logo.href, first);

  for (const [type, content] of [
    ['image/jpeg', jpeg],
    ['image/webp', webp],
    ['image/webp', losslessWebp],
  ] as const) {
    const replaced = await upload(owner, id, content, type);
    assert.equal(replaced.status, 200, replaced.text);
    const path = replaced.body._links.logo.href;
    assert.notEqual(path, first);
    assert.equal((await show(path)).headers.get('content-type'), type);
    assert.equal((await show(first)).status, 404, 'the previous logo is gone');
  }
  const last = await logoOf(owner, id);
  assert.equal((await owner.request('DELETE', `/apps/${id}/logo`)).status, 204);
  assert.equal((await owner.request('DELETE', `/apps/${id}/logo`)).status, 204, 'removing it again succeeds');
  assert.equal(await logoOf(owner, id), undefined);
  assert.equal((await show(String(last))).status, 404);
  const entries = await entriesOf(id);
  assert.deepEqual(
    entries.map(({ kind }) => kind),
    ['app.logo_changed', 'app.logo_changed', 'app.logo_changed', 'app.logo_changed', 'app.logo_removed'],
  );
  assert.ok(entries.every(({ actor }) => actor === owner.account.id));
});

test('uploading the same logo again changes nothing', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  await upload(owner, id, png());
  await sql`update clients set verified_at = now() where id = ${id}`.execute(db);
  const made = await owner.request('GET', `/apps/${id}`);
  const again = await upload(owner, id, png(64, 64, undefined, [pngChunk('tEXt', Buffer.from('new'))]));
  assert.deepEqual(
    [again.status, again.body._links.logo, again.body.updated_at, again.body.state],
    [200, made.body._links.logo, made.body.updated_at, 'verified'],
  );
  assert.equal((await entriesOf(id)).length, 1);
  // The same is true of concurrent uploads.
  const answers = await Promise.all(Array.from({ length: 5 }, () => upload(owner, id, png(32, 32))));
  assert.equal(new Set(answers.map(({ status, body }) => `${status} ${body._links.logo.href}`)).size, 1);
  assert.equal((await entriesOf(id)).length, 2);
});

test('a logo is served with its detected type, sandboxed and cacheable', async () => {
  const owner = await createConsoleUser(server);
  const made = await upload(owner, await createAppOf(owner), png());
  const path = made.body._links.logo.href;
  const { headers } = await show(path);
  assert.deepEqual(
    [
      ...['content-type', 'x-content-type-options', 'content-security-policy', 'content-disposition'],
      ...['cross-origin-resource-policy', 'cache-control', 'set-cookie', 'access-control-allow-origin'],
    ].map((name) => headers.get(name)),
    [
      ...['image/png', 'nosniff', "default-src 'none'; sandbox", 'inline'],
      ...['same-origin', 'private, max-age=31536000, immutable', null, null],
    ],
  );
  const known = await show(path, { 'if-none-match': headers.get('etag') as string });
  assert.deepEqual([known.status, await known.text()], [304, '']);
});

test('a verified app is unverified when its logo changes, unless an administrator changed it', async () => {
  const owner = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  for (const [user, method, state] of [
    [owner, 'PUT', 'unverified'],
    [owner, 'DELETE', 'unverified'],
    [admin, 'PUT', 'verified'],
    [admin, 'DELETE', 'verified'],
  ] as const) {
    const id = await createAppOf(owner);
    await upload(owner, id, png());
    const { body: seen } = await admin.request('GET', `/admin/apps/${id}`);
    const verified = await admin.request('POST', `/admin/apps/${id}/verify`, {
      json: { updated_at: seen.updated_at },
    });
    assert.equal(verified.body.state, 'verified', verified.text);
    if (method === 'PUT') await upload(user, id, jpeg, 'image/jpeg');
    else await user.request('DELETE', `/apps/${id}/logo`);
    const { body } = await admin.request('GET', `/admin/apps/${id}`);
    assert.equal(body.state, state, `${method} by ${user === admin ? 'an administrator' : 'an owner'}`);
    assert.notEqual(body.updated_at, seen.updated_at);
  }
});

test('an administrator cannot verify an app whose logo changed since they read it', async () => {
  const owner = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  const id = await createAppOf(owner);
  const { body: seen } = await admin.request('GET', `/admin/apps/${id}`);
  await upload(owner, id, png());
  const json = { updated_at: seen.updated_at };
  const refused = await admin.request('POST', `/admin/apps/${id}/verify`, { json });
  assert.deepEqual([refused.status, refused.body.code], [412, 'app-changed']);
});

test('concurrent changes of app and logo are both applied', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  const [patched, uploaded] = await Promise.all([
    owner.request('PATCH', `/apps/${id}`, { json: { client_name: 'Renamed' } }),
    upload(owner, id, png()),
  ]);
  assert.deepEqual([patched.status, uploaded.status], [200, 200]);
  const { body } = await owner.request('GET', `/apps/${id}`);
  assert.deepEqual([body.client_name, body._links.logo.href], ['Renamed', uploaded.body._links.logo.href]);
});

test('a suspended app’s logo is hidden until it is reinstated, and a deleted app’s logo is gone', async () => {
  const owner = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  const id = await createAppOf(owner);
  const path = (await upload(owner, id, png())).body._links.logo.href;
  await admin.request('POST', `/admin/apps/${id}/suspend`);
  assert.equal((await show(path)).status, 404);
  assert.equal(await logoOf(owner, id), undefined);
  assert.equal((await admin.request('GET', `/admin/apps/${id}`)).body._links.logo, undefined);
  await admin.request('POST', `/admin/apps/${id}/reinstate`);
  assert.equal((await show(path)).status, 200);
  assert.equal(await logoOf(owner, id), path);
  assert.equal((await owner.request('DELETE', `/apps/${id}`)).status, 204);
  assert.equal((await show(path)).status, 404);
  const { rows } = await sql`select from app_logos where client_id = ${id}`.execute(db);
  assert.equal(rows.length, 0);
});

test('attack: only an app’s members and administrators change its logo', async () => {
  const owner = await createConsoleUser(server);
  const developer = await createConsoleUser(server);
  const stranger = await createConsoleUser(server);
  const id = await createAppOf(owner);
  const path = (await upload(owner, id, png())).body._links.logo.href;
  await sql`
    insert into app_members (client_id, account_id, role) values (${id}, ${developer.account.id}, 'developer')`.execute(
    db,
  );
  const other = await createAppOf(stranger);
  const operatorApp = await createTestClient(server, { scopes: ['read:posts'] });
  const reader = await mintAccessToken(server, {
    account: owner.account,
    client: { id: 'nuncio-console' },
    scopes: ['read:apps'],
  });
  const nobody = { request: requester(server) };
  const refusals: [user: Pick<ConsoleUser, 'request'>, id: string, status: number][] = [
    [stranger, id, 404],
    [stranger, 'nuncio-console', 404],
    [stranger, operatorApp.id, 404],
    [stranger, `${other}%2f..%2f${id}`, 404],
    [stranger, `%00${id}`, 404],
    [stranger, `${id}%0a`, 404],
    [nobody, id, 401],
    [{ request: requester(server, reader.accessToken) }, id, 403],
    [await createConsoleUser(server, { isAdmin: true }), operatorApp.id, 403],
  ];
  for (const [user, target, status] of refusals) {
    const put = await upload(user, target, jpeg, 'image/jpeg');
    assert.equal(put.status, status, `PUT ${target}: ${put.text}`);
    assert.equal(put.headers.get('content-type'), 'application/problem+json');
    const removed = await user.request('DELETE', `/apps/${target}/logo`);
    assert.equal(removed.status, status, `DELETE ${target}: ${removed.text}`);
  }
  assert.equal(await logoOf(owner, id), path);
  assert.equal((await upload(developer, id, jpeg, 'image/jpeg')).status, 200, 'as any change of the app');
});

test('attack: an app cannot get another app’s logo by its address or content', async () => {
  const owner = await createConsoleUser(server);
  const stranger = await createConsoleUser(server);
  const path = (await upload(owner, await createAppOf(owner), png())).body._links.logo.href;
  const copied = await upload(stranger, await createAppOf(stranger), png());
  assert.notEqual(copied.body._links.logo.href, path, 'the same image has an address for each app');
  for (const json of [
    { logo: path.slice('/logos/'.length) },
    { _links: { logo: { href: path } } },
    { logo_digest: path },
  ]) {
    assert.equal((await stranger.request('PATCH', `/apps/${copied.body.client_id}`, { json })).status, 422);
  }
});

test('attack: a forged or foreign logo address is not found', async () => {
  const made = 'A'.repeat(43);
  for (const path of [
    '/logos/',
    `/logos/${made}`,
    `/logos/${made}.png`,
    '/logos/..%2f..%2fetc%2fpasswd',
    '/logos/%00',
    '/logos/%2e%2e%2f%2e%2e',
    `/logos/${made.slice(1)}'`,
    '/logos/*',
  ]) {
    const { status, headers } = await show(path);
    assert.equal(status, 404, path);
    assert.doesNotMatch(String(headers.get('cache-control')), /max-age=[1-9]/, path);
  }
  assert.equal((await fetch(`${server.baseUrl}/logos/${made}`, { method: 'DELETE' })).status, 405);
});

test('attack: content that is not an image of its declared type is refused', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  const svg = '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>';
  const page = '<!doctype html><script>alert(1)</script>';
  const bomb = Buffer.concat([
    pngSignature,
    pngHeader(50_000, 50_000),
    pngChunk('IDAT', Buffer.from('x')),
    pngChunk('IEND'),
  ]);
  const refusals: [type: string, content: Buffer, status: number, code: string][] = [
    ['image/svg+xml', Buffer.from(svg), 415, 'unsupported-media-type'],
    ['image/gif', Buffer.from('GIF89a'), 415, 'unsupported-media-type'],
    ['text/html', Buffer.from(page), 415, 'unsupported-media-type'],
    ['application/json', Buffer.from('{}'), 415, 'unsupported-media-type'],
    ['multipart/form-data; boundary=x', Buffer.from('--x--'), 415, 'unsupported-media-type'],
    ['image/png, text/html', png(), 415, 'unsupported-media-type'],
    ['image/png', Buffer.from(svg), 422, 'invalid-image'],
    ['image/webp', Buffer.from(page), 422, 'invalid-image'],
    ['image/jpeg', png(), 422, 'invalid-image'],
    ['image/png', png().subarray(0, -1), 422, 'invalid-image'],
    ['image/jpeg', jpeg.subarray(0, -2), 422, 'invalid-image'],
    ['image/webp', webp.subarray(0, -4), 422, 'invalid-image'],
    ['image/png', bomb, 422, 'invalid-image'],
    ['image/png', Buffer.alloc(0), 422, 'invalid-image'],
  ];
  for (const [type, content, status, code] of refusals) {
    const answer = await upload(owner, id, content, type);
    assert.deepEqual([answer.status, answer.body.code], [status, code], `${type}: ${answer.text}`);
    assert.equal(answer.headers.get('content-type'), 'application/problem+json');
  }
  const packed = await owner.request('PUT', `/apps/${id}/logo`, {
    headers: { 'content-type': 'image/png', 'content-encoding': 'gzip' },
    raw: new Uint8Array(png()),
  });
  assert.equal(packed.status, 415);
  assert.equal(await logoOf(owner, id), undefined);
  const other = await owner.request('PATCH', `/apps/${id}`, {
    headers: { 'content-type': 'image/png' },
    raw: new Uint8Array(png()),
  });
  assert.equal(other.status, 415, 'no other resource accepts images');
});

test('attack: a body past the limit is refused, sized or chunked, and a false length stores nothing', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  const fits = png(
    8,
    8,
    [0, 0, 0],
    [pngChunk('tEXt', Buffer.alloc(65_536 - png(8, 8, [0, 0, 0]).length - 12))],
  );
  assert.equal(fits.length, 65_536);
  assert.equal((await upload(owner, id, fits)).status, 200);
  const path = await logoOf(owner, id);
  const long = Buffer.concat([fits, Buffer.from('x')]);
  const refused = await upload(owner, id, long);
  assert.equal(refused.status, 413, refused.text);
  assert.equal(refused.headers.get('content-type'), 'application/problem+json');
  const request = `PUT /apps/${id}/logo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${owner.accessToken}\r\nContent-Type: image/png\r\n`;
  const chunk = Buffer.concat([Buffer.from('10000\r\n'), fits, Buffer.from('\r\n')]);
  const chunked = [Buffer.from(`${request}Transfer-Encoding: chunked\r\n\r\n`), chunk, chunk];
  assert.match(await converse(Buffer.concat(chunked)), /^HTTP\/1.1 413 /);
  // Fewer bytes than promised, then the end of the connection.
  const short = `${request}Content-Length: ${fits.length}\r\n\r\n`;
  assert.doesNotMatch(
    await converse(Buffer.concat([Buffer.from(short), fits.subarray(0, 99)]), true),
    /^HTTP\/1.1 2/,
  );
  // More bytes than promised: the rest is not part of the body.
  const cut = `${request}Content-Length: 99\r\nConnection: close\r\n\r\n`;
  assert.match(await converse(Buffer.concat([Buffer.from(cut), fits])), /^HTTP\/1.1 4/);
  assert.equal(await logoOf(owner, id), path);
});

/** Sends the bytes. @param ends whether this side then closes the connection @returns all that the server sends */
function converse(bytes: Buffer, ends = false): Promise<string> {
  const { hostname, port } = new URL(server.baseUrl);
  return new Promise((resolve) => {
    const socket = connect(Number(port), hostname);
    let text = '';
    socket.on('data', (data) => {
      text += data.toString('latin1');
    });
    // A reset after the response counts as an end.
    socket.on('error', () => {});
    socket.on('close', () => resolve(text));
    socket.write(bytes);
    if (ends) socket.end();
  });
}

test('users see the logo when they decide about an app, and pages load images from this server only', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  const path = (await upload(owner, id, png())).body._links.logo.href;
  const user = await createConsoleUser(server);
  const browser = new TestBrowser(server.baseUrl);
  const client = { id, redirectUri: description.redirect_uris[0] } as TestClient;
  const { challenge } = createPkce();
  const url = authorizationUrl(server, client, {
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
  });
  const { email, password } = user.account;
  const login = await browser.open(url);
  assert.ok(!login.text.includes(path), 'the login page is this server’s own');
  const consent = await browser.submit(login, { email, password, action: 'login' });
  assert.ok(consent.text.includes(`<img class="logo" src="${path}" alt=""`), consent.text);
  assert.match(consent.text, /Its developer chose its name and logo/);
  await browser.submit(consent, { action: 'allow' });
  const account = await browser.open(`${server.baseUrl}/account`);
  assert.ok(account.text.includes(`src="${path}"`));
  const { headers } = await fetch(`${server.baseUrl}/account`);
  assert.match(String(headers.get('content-security-policy')), /img-src 'self' data:;/);

  await sql`update clients set suspended_at = now() where id = ${id}`.execute(db);
  assert.ok(!(await browser.open(`${server.baseUrl}/account`)).text.includes('/logos/'));
});

test('no page loads an app’s logo by an external URL', async () => {
  const owner = await createConsoleUser(server);
  const logo = 'https://elsewhere.example/logo.png';
  const made = await owner.request('POST', '/apps', { json: { ...description, logo_uri: logo } });
  assert.equal(made.body.logo_uri, logo);
  assert.equal(made.body._links.logo, undefined);
});
