/** A node with more requests than it can serve. Locked tables make requests slow, for as long as a test wants. */

import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { version } from '../../src/version.ts';
import { formsOf, TestBrowser } from '../support/browser/browser.ts';
import { type ApiResponse, createApiUser } from '../support/clients/api_client.ts';
import { authorize, createTestAccount, createTestClient, postForm } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

/** 7 places are for the API, of which one account gets 2, and its app 3. 128 more requests wait, of one account 48, of its app 56. */
const metricsToken = 'a-token-for-metrics';
const server = await startTestServer(
  { after },
  {
    NUNCIO_CONCURRENT_REQUESTS: '8',
    NUNCIO_TRUST_PROXY: '127.0.0.1',
    NUNCIO_METRICS_TOKEN: metricsToken,
  },
);

/** Runs the work while no statement can use the table. */
async function whileLocked(table: string, work: () => Promise<void>): Promise<void> {
  await server.db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await sql`lock table ${sql.table(table)} in access exclusive mode`.execute(tx);
    await work();
  });
}

async function metric(name: string, labels = ''): Promise<number> {
  const headers = { authorization: `Bearer ${metricsToken}` };
  const response = await fetch(`${server.baseUrl}/metrics`, { headers });
  const text = await response.text();
  const line = text.split('\n').find((each) => each.startsWith(`${name}${labels} `));
  return Number(line?.split(' ')[1]);
}

const inProgress = (precedence: string) =>
  metric('nuncio_requests', `{class="${precedence}",state="in_progress"}`);
const waiting = (precedence: string) => metric('nuncio_requests', `{class="${precedence}",state="waiting"}`);

/** Sends the same request many times, and collects the responses as they arrive. */
function flood<Response>(count: number, send: (index: number) => Promise<Response>) {
  const responses: Response[] = [];
  const all = Promise.all(
    Array.from({ length: count }, async (_none, index) => {
      responses.push(await send(index));
    }),
  );
  return { responses, all };
}

/** Signs in, allows, gets a token, and withdraws, as a user does. @returns whether the grant has ended */
async function connectAndWithdraw(): Promise<boolean> {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const { browser, grantId } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const page = await browser.open(`${server.baseUrl}/account`);
  const form = formsOf(page.text).findIndex(({ action }) => action === '/account/withdraw');
  await browser.submit(page, {}, form);
  const { rows } = await sql`select from grants where id = ${grantId} and withdrawn_at is not null`.execute(
    server.db,
  );
  return rows.length === 1;
}

/** A user whose token is known, with an article. */
async function createKnownUser() {
  const user = await createApiUser(server, ['read:posts', 'write:posts', 'read:webhooks', 'write:webhooks']);
  const { body } = await user.request('POST', '/articles', { json: { title: 'read slowly' } });
  return { ...user, path: `/articles/${body.id}` };
}

test('slow requests of one account leave places for others, for sign-in and for withdrawal', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const publisher = await createPublisher(server);
  const slow = await createKnownUser();
  const other = await createKnownUser();
  const key = { 'idempotency-key': 'once' };
  const write = () => slow.request('POST', '/articles', { json: { title: 'retried' }, headers: key });
  let flooding: ReturnType<typeof flood<ApiResponse>> | undefined;
  await whileLocked('articles', async () => {
    flooding = flood(60, () => slow.request('GET', slow.path));
    const { responses } = flooding;
    await until(
      async () => responses.length,
      (count) => count === 58,
    );
    for (const { status, body, headers } of responses) {
      assert.equal(status, 503);
      assert.equal(body.code, 'overloaded');
      assert.equal(headers.get('content-type'), 'application/problem+json');
      assert.match(headers.get('retry-after') ?? '', /^[1-5]$/);
      assert.equal(headers.get('access-control-allow-origin'), '*');
      assert.equal(body.instance, `urn:uuid:${headers.get('request-id')}`);
      assert.equal(headers.get('nuncio-version'), version);
    }
    assert.equal(await inProgress('ordinary'), 2);
    assert.equal((await write()).status, 503);
    // Meanwhile others are served.
    assert.equal((await other.request('GET', '/api')).status, 200);
    assert.equal(await connectAndWithdraw(), true);
    assert.equal((await fetch(`${server.baseUrl}/readyz`)).status, 200);
    await publish(publisher, app.account, ['delivered']);
    await subscriber.waitFor(1);
  });
  await flooding?.all;
  assert.equal(flooding?.responses.filter(({ status }) => status === 200).length, 2);
  // The refused request changed nothing, so it can be repeated with its key.
  const made = await write();
  assert.equal(made.status, 201);
  assert.equal((await write()).body.id, made.body.id);
  const { rows } = await sql`select from articles where title = 'retried'`.execute(server.db);
  assert.equal(rows.length, 1);
});

test('a refused request with a body leaves its connection usable, and refusals without a connection are dropped', async () => {
  const slow = await createKnownUser();
  const { port } = new URL(server.baseUrl);
  const json = JSON.stringify({ title: 'x'.repeat(10_000) });
  const request =
    `POST /articles HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${slow.accessToken}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${json.length}\r\n\r\n${json}`;
  let flooding: ReturnType<typeof flood<ApiResponse>> | undefined;
  await whileLocked('articles', async () => {
    flooding = flood(60, () => slow.request('GET', slow.path));
    await until(
      () => waiting('ordinary'),
      (count) => count > 0,
    );
    const gone = connect({ port: Number(port), host: '127.0.0.1' });
    gone.on('error', () => {});
    gone.write(request, () => gone.destroy());
    const socket = connect({ port: Number(port), host: '127.0.0.1' });
    let received = '';
    socket.setEncoding('latin1').on('data', (text: string) => {
      received += text;
    });
    // Refused until the others have been waiting too long.
    socket.write(request + request);
    socket.write('GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n');
    await new Promise((resolve) => socket.once('close', resolve));
    assert.deepEqual(
      [...received.matchAll(/HTTP\/1\.1 (\d+) /g)].map(([, status]) => status),
      ['503', '503', '200'],
    );
  });
  await flooding?.all;
  await until(
    () => inProgress('ordinary'),
    (count) => count === 0,
  );
});

test('slow requests of many accounts leave places for sign-in and withdrawal', async () => {
  const users = await Promise.all(Array.from({ length: 12 }, () => createKnownUser()));
  let flooding: ReturnType<typeof flood<ApiResponse>> | undefined;
  await whileLocked('articles', async () => {
    flooding = flood(12, (index) => users[index]?.request('GET', users[index].path) as Promise<ApiResponse>);
    await until(
      () => inProgress('ordinary'),
      (count) => count === 7,
    );
    assert.equal(await connectAndWithdraw(), true);
    assert.equal((await fetch(`${server.baseUrl}/readyz`)).status, 200);
    const { responses } = flooding;
    await until(
      async () => responses.length,
      (count) => count === 5,
    );
    const page = await fetch(`${server.baseUrl}/docs/`, { headers: { accept: 'text/html' } });
    assert.equal(page.status, 503);
    assert.match(page.headers.get('content-type') ?? '', /^text\/html/);
    assert.match(await page.text(), /overloaded/);
  });
  await flooding?.all;
  assert.ok((await metric('nuncio_requests_refused_total', '{class="ordinary",reason="deadline"}')) >= 5);
  await until(
    () => inProgress('ordinary'),
    (count) => count === 0,
  );
});

test('a flood at the token endpoint from one network leaves places for the sign-in of another', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const from = (address: string) => ({ 'x-forwarded-for': address });
  const form = {
    grant_type: 'authorization_code',
    code: 'guessed',
    code_verifier: 'v'.repeat(43),
    redirect_uri: client.redirectUri,
  };
  let flooding: ReturnType<typeof flood<Awaited<ReturnType<typeof postForm>>>> | undefined;
  await whileLocked('authorization_codes', async () => {
    flooding = flood(40, () => postForm(server, '/oauth/token', client, form, from('203.0.113.7')));
    const { responses } = flooding;
    // Three have a place, 14 wait for one, and the others are refused.
    await until(
      async () => responses.length,
      (count) => count >= 30,
    );
    for (const { status, body, headers } of responses) {
      assert.equal(status, 503);
      assert.equal(body.error, 'temporarily_unavailable');
      assert.ok(Number(headers.get('retry-after')) > 0);
    }
    assert.equal(await inProgress('first'), 3);
    const account = await createTestAccount(server);
    const browser = new TestBrowser(server.baseUrl);
    const headers = from('198.51.100.9');
    const page = await browser.open(`${server.baseUrl}/account`, { headers });
    const signedIn = await browser.submit(page, { email: account.email, password: account.password });
    assert.match(signedIn.text, /Sign out/);
  });
  await flooding?.all;
  // Those that had a place, and those that still waited.
  const served = flooding?.responses.filter(({ status }) => status === 400).length ?? 0;
  assert.ok(served >= 3 && served <= 10, `${served} were served`);
  await until(
    () => inProgress('first'),
    (count) => count === 0,
  );
});

test('bodies that arrive slowly take no places, and one account gets its share of their memory', async (t) => {
  const slow = await createKnownUser();
  const other = await createKnownUser();
  const { port } = new URL(server.baseUrl);
  const head =
    `POST /articles HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${slow.accessToken}\r\n` +
    'Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n';
  const answered: string[] = [];
  const sockets: Socket[] = [];
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  // Of 128 MiB, 3/8 are its share: 50 bodies of 1 MB.
  for (let index = 0; index < 70; index += 1) {
    const socket = connect({ port: Number(port), host: '127.0.0.1' });
    sockets.push(socket);
    socket.on('error', () => {});
    socket.once('data', (chunk) => answered.push(chunk.toString()));
    socket.write(head);
    // One after the other, so that the guard of each has a place.
    await until(
      async () => (await metric('nuncio_request_body_bytes')) + answered.length * 1_000_000,
      (bytes) => bytes === (index + 1) * 1_000_000,
    );
  }
  assert.equal(answered.length, 20);
  for (const answer of answered) assert.match(answer, /^HTTP\/1\.1 503 /);
  assert.equal(await inProgress('ordinary'), 0);
  assert.equal((await other.request('POST', '/articles', { json: { title: 'x' } })).status, 201);
  for (const socket of sockets) socket.destroy();
  await until(
    () => metric('nuncio_request_body_bytes'),
    (bytes) => bytes === 0,
  );
});

test('streams and requests that wait for events take no places', async (t) => {
  const ended = new AbortController();
  t.after(async () => ended.abort());
  const apps = await Promise.all(Array.from({ length: 4 }, () => createApp(server)));
  const { signal } = ended;
  for (const app of apps) {
    const { id } = await subscribe(app, { url: null });
    for (let index = 0; index < 4; index += 1) {
      const headers = { authorization: `Bearer ${app.accessToken}` };
      const url = `${server.baseUrl}/subscriptions/${id}/events`;
      const stream = await fetch(url, { headers: { ...headers, accept: 'text/event-stream' }, signal });
      assert.equal(stream.status, 200);
      fetch(`${url}?wait=60`, { headers, signal }).catch(() => {});
    }
  }
  await until(
    () => metric('nuncio_client_connections'),
    (count) => count >= 32,
  );
  for (const precedence of ['first', 'ordinary', 'last']) {
    await until(
      () => inProgress(precedence),
      (count) => count === 0,
    );
    assert.equal(await waiting(precedence), 0);
  }
  assert.equal((await apps[0]?.request('GET', '/articles'))?.status, 200);
});

test('a head above the limit is 431', async () => {
  const response = await fetch(`${server.baseUrl}/livez`, { headers: { padding: 'x'.repeat(17_000) } });
  assert.equal(response.status, 431);
});
