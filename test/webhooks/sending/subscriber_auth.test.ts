/** How deliveries authenticate to the subscriber: passwords, headers, access tokens and the deployment's certificate. */

import assert from 'node:assert/strict';
import { randomUUID, X509Certificate } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { createServer as createTls } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TLSSocket } from 'node:tls';
import { sql } from 'kysely';
import { createGuardedFetch } from '../../../src/egress/fetch.ts';
import { Authorizer } from '../../../src/webhooks/sending/authorization.ts';
import { TokenTurns } from '../../../src/webhooks/sending/token_turns.ts';
import {
  authorityCertificate,
  machineAuthorityCertificate,
  machineCertificate,
  machineKey,
  serverCertificate,
  serverKey,
} from '../../support/network/certificates.ts';
import { temporaryFolder } from '../../support/servers/process.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, type Behaviour, startSubscriber } from '../../support/webhooks/subscriber.ts';

const folder = await temporaryFolder({ after });
const certFile = join(folder, 'client.pem');
const keyFile = join(folder, 'client.key');
writeFileSync(certFile, machineCertificate);
writeFileSync(keyFile, machineKey);

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

const secretText = 'a password that nobody may read';
const url = 'https://example.com/hooks';

/** An authorization server that issues token-1, token-2 … */
async function startIssuer(
  t: TestContext,
  change: (answer: object, count: number) => object = (same) => same,
) {
  let count = 0;
  const issuer = await startSubscriber(t, (_received, response) => {
    count += 1;
    const body = change({ access_token: `token-${count}`, token_type: 'Bearer', expires_in: 3_600 }, count);
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  });
  const credentials = {
    type: 'oauth2',
    token_url: `${issuer.url}/token`,
    client_id: 'nuncio:1',
    client_secret: secretText,
  };
  return { issuer, credentials };
}

async function attemptsOf({ request }: App, subscription: string, count = 1) {
  const { items } = await until(
    async () => (await request('GET', `/subscriptions/${subscription}/deliveries`)).body,
    (body) => body.items.length > 0 && body.items[0].attempt_count >= count,
  );
  return (await request('GET', `/deliveries/${items[0].id}`)).body.attempts;
}

test('a password and a header are sent with every attempt, sealed, and never shown', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const cases = [
    {
      auth: { type: 'basic', username: 'nuncio ü', password: secretText },
      shown: { type: 'basic', username: 'nuncio ü' },
      sent: ['authorization', `Basic ${Buffer.from(`nuncio ü:${secretText}`).toString('base64')}`],
    },
    {
      auth: { type: 'header', name: 'X-Api-Key', value: secretText },
      shown: { type: 'header', name: 'X-Api-Key' },
      sent: ['x-api-key', secretText],
    },
  ];
  for (const { auth, shown, sent } of cases) {
    const made = await subscribe(app, { url: subscriber.url, auth });
    assert.deepEqual(made.auth, shown);
    const count = subscriber.received.length;
    await app.request('POST', `/subscriptions/${made.id}/test`);
    const received = (await subscriber.waitFor(count + 1)).at(-1);
    assert.equal(received?.headers[sent[0] as string], sent[1]);
    const [attempt] = await attemptsOf(app, made.id);
    const name = Object.keys(attempt.request.headers).find((each) => each.toLowerCase() === sent[0]);
    assert.equal(attempt.request.headers[name as string], '***');
    await app.request('DELETE', `/subscriptions/${made.id}`);
  }
  const { rows } = await sql<{ row: string }>`
    select s::text || coalesce(encode(auth_secret, 'escape'), '') as row from subscriptions s`.execute(
    server.db,
  );
  assert.ok(rows.every(({ row }) => !row.includes('nobody may read')));
});

test('an access token is requested once, as RFC 6749 says, and used for all deliveries', async (t) => {
  const { issuer, credentials } = await startIssuer(t);
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const auth = { ...credentials, scope: 'hooks:write hooks:read' };
  const made = await subscribe(app, { url: subscriber.url, auth });
  const { client_secret: _secret, ...shown } = auth;
  assert.deepEqual(made.auth, shown);
  for (let number = 0; number < 20; number++) await publish(publisher, app.account, [randomUUID()]);
  const received = await subscriber.waitFor(20);
  assert.deepEqual([...new Set(received.map(({ headers }) => headers.authorization))], ['Bearer token-1']);
  assert.equal(issuer.received.length, 1);
  const [asked] = issuer.received;
  const password = Buffer.from('nuncio%3A1:a+password+that+nobody+may+read').toString('base64');
  assert.equal(asked?.headers.authorization, `Basic ${password}`);
  assert.deepEqual(Object.fromEntries(new URLSearchParams(asked?.body)), {
    grant_type: 'client_credentials',
    scope: 'hooks:write hooks:read',
  });
  // Another subscription has a token of its own, also with the same credentials.
  const other = await createApp(server);
  await subscribe(other, { url: subscriber.url, auth });
  await publish(publisher, other.account, [randomUUID()]);
  assert.equal((await subscriber.waitFor(21)).at(-1)?.headers.authorization, 'Bearer token-2');
});

test('a token that the subscriber refuses is replaced once, within the same attempt, which has no places meanwhile', async (t) => {
  const asked: ServerResponse[] = [];
  const issuer = await startSubscriber(t, (_received, response) => void asked.push(response));
  const issue = async (count: number) => {
    await issuer.waitFor(count);
    asked.at(-1)?.end(JSON.stringify({ access_token: `token-${count}`, token_type: 'bearer' }));
  };
  const subscriber = await startSubscriber(t, ({ headers }, response) => {
    response.writeHead(headers.authorization === 'Bearer token-1' ? 401 : 204).end();
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, {
    url: subscriber.url,
    auth: { ...basicCredentials, token_url: issuer.url },
  });
  // A token that has just come is not replaced: then the subscriber refuses every token.
  await publish(publisher, app.account, [randomUUID()]);
  await issue(1);
  const [first] = await attemptsOf(app, id);
  assert.deepEqual([first.status, first.error], [401, 'unexpected_status']);
  assert.deepEqual([issuer.received.length, subscriber.received.length], [1, 1]);
  // After ten seconds a refused token counts as revoked.
  await sleep(10_100);
  await publish(publisher, app.account, [randomUUID()]);
  await issuer.waitFor(2);
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  assert.match(metrics, /^nuncio_worker\{of="in_flight"\} 0$/m);
  await issue(2);
  const accepted = await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (items) => items[0].state === 'succeeded',
  );
  const { attempts } = (await app.request('GET', `/deliveries/${accepted[0].id}`)).body;
  assert.deepEqual(
    attempts.map(({ status }: { status: number }) => status),
    [204],
  );
  assert.equal(issuer.received.length, 2);
  assert.equal(subscriber.received.at(-1)?.headers.authorization, 'Bearer token-2');
});

test('deliveries whose tokens are requested have no places at the subscriber’s host', async (t) => {
  const asked: ServerResponse[] = [];
  const issuer = await startSubscriber(t, (_received, response) => void asked.push(response));
  const subscriber = await startSubscriber(t);
  for (let count = 0; count < 2; count += 1) {
    const app = await createApp(server);
    const auth = { ...basicCredentials, token_url: issuer.url };
    await subscribe(app, { url: `${subscriber.url}/hangs`, auth });
    await publish(publisher, app.account, [randomUUID(), randomUUID()]);
  }
  await issuer.waitFor(2);
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  assert.match(metrics, /^nuncio_worker\{of="in_flight"\} 0$/m);
  for (const response of asked) response.end(JSON.stringify({ access_token: 'late', token_type: 'bearer' }));
  const received = await subscriber.waitFor(4);
  assert.ok(received.every(({ headers }) => headers.authorization === 'Bearer late'));
});

test('without a usable token nothing is sent, and the log says why', async (t) => {
  const subscriber = await startSubscriber(t);
  const cases: [string, Behaviour][] = [
    ['the token URL responded with 401, invalid_client', respond(401, { error: 'invalid_client' })],
    ['the token URL responded with 400', respond(400, { error: 'x\r\ny' })],
    ['the token URL responded with 302', answer(302, { location: `${subscriber.url}/token` })],
    ['the response of the token URL has no usable access token', respond(200, { token_type: 'Bearer' })],
    [
      'the response of the token URL has no usable access token',
      respond(200, { access_token: 'a\r\nX-Evil: 1', token_type: 'Bearer' }),
    ],
    [
      'the response of the token URL has no usable access token',
      respond(200, { access_token: 'a'.repeat(5_000), token_type: 'Bearer' }),
    ],
    [
      'the response of the token URL has no token of the type Bearer',
      respond(200, { access_token: 'a', token_type: 'DPoP' }),
    ],
    ['the token URL could not be reached', (_received, response) => response.destroy()],
    [
      'the response of the token URL is larger than 16384 bytes, or has too many chunks',
      respond(200, { filler: 'a'.repeat(100_000) }),
    ],
  ];
  for (const [reason, behave] of cases) {
    const issuer = await startSubscriber(t, behave);
    const app = await createApp(server);
    const auth = { ...basicCredentials, token_url: issuer.url };
    const { id } = await subscribe(app, { url: subscriber.url, auth });
    await publish(publisher, app.account, [randomUUID()]);
    const [attempt] = await attemptsOf(app, id);
    assert.deepEqual([attempt.error, attempt.status], ['auth_error', null]);
    assert.match(attempt.error_detail, new RegExp(`${reason}\\)$`));
    assert.equal(issuer.received.length, 1);
  }
  assert.equal(subscriber.received.length, 0);
});

test('a token URL that comes to a private address is refused, at the request and by its name', async (t) => {
  const resolveHost = async (name: string) => [name === 'public.example' ? '93.184.216.34' : '10.1.2.3'];
  const guarded = await startTestServer(t, { NUNCIO_INSECURE_SUBSCRIBERS: '0' }, 'dev', undefined, {
    resolveHost,
  });
  const app = await createApp(guarded);
  const request = (token_url: string) =>
    app.request('POST', '/subscriptions', {
      json: { url: 'https://public.example/', kinds: ['push'], auth: { ...basicCredentials, token_url } },
    });
  for (const [tokenUrl, code] of [
    ['https://127.0.0.1/token', 'url_address'],
    ['https://169.254.169.254/latest', 'url_address'],
    ['http://example.com/token', 'url_scheme'],
    ['https://example.com:6379/', 'url_port'],
    ['https://user:password@example.com/', 'url_credentials'],
  ] as const) {
    const { status, body } = await request(tokenUrl);
    assert.deepEqual([status, body.errors[0].pointer, body.errors[0].code], [422, '/auth/token_url', code]);
  }
  const made = await request('https://rebinds.example/token');
  assert.equal(made.status, 201, made.text);
  await publish(await createPublisher(guarded), app.account, [randomUUID()]);
  const [attempt] = await attemptsOf(app, made.body.id);
  assert.equal(attempt.error, 'auth_error');
});

test('members that are missing, out of place or end a line are refused, each at its place', async () => {
  const app = await createApp(server);
  const cases: [object, string][] = [
    [{ type: 'basic', username: 'a' }, '/auth/password'],
    [{ type: 'basic', username: 'a:b', password: 'c' }, '/auth/username'],
    [{ type: 'basic', username: 'a\r\nX-Evil: 1', password: 'c' }, '/auth/username'],
    [{ type: 'basic', username: 'a', password: 'c\n' }, '/auth/password'],
    [{ type: 'basic', username: 'a', password: 'b', value: 'c' }, '/auth/value'],
    [{ type: 'header', name: 'X-Key' }, '/auth/value'],
    [{ type: 'header', name: 'X-Key: 1\r\nX-Evil', value: 'a' }, '/auth/name'],
    [{ type: 'header', name: 'X-Key', value: 'a\r\nX-Evil: 1' }, '/auth/value'],
    [{ type: 'header', name: 'Host', value: 'a' }, '/auth/name'],
    [{ type: 'header', name: 'Nuncio-Event', value: 'a' }, '/auth/name'],
    [{ ...basicCredentials, client_id: 'a\nb' }, '/auth/client_id'],
    [{ ...basicCredentials, scope: 'a  b' }, '/auth/scope'],
    [{ ...basicCredentials, token_url: 'no url' }, '/auth/token_url'],
    [{ type: 'mtls' }, '/auth/type'],
    [{ type: 'mtls', name: 'X-Key' }, '/auth/name'],
    [{ type: 'digest' }, '/auth/type'],
    [{ username: 'a', password: 'b' }, '/auth/type'],
    [{ type: 'basic', username: 'a', password: 'b', extra: 1 }, '/auth/extra'],
  ];
  for (const [auth, pointer] of cases) {
    const { status, body } = await app.request('POST', '/subscriptions', {
      json: { url, kinds: ['push'], auth },
    });
    const pointers = body.errors?.map((error: { pointer: string }) => error.pointer);
    assert.equal(status, 422, JSON.stringify(auth));
    assert.ok(pointers.includes(pointer), `${JSON.stringify(auth)}: ${pointers}`);
  }
  const header = { type: 'header', name: 'x-KEY', value: 'a' };
  const same = { url, kinds: ['push'], auth: header, headers: { 'X-Key': 'b' } };
  const refused = await app.request('POST', '/subscriptions', { json: same });
  assert.deepEqual([refused.status, refused.body.errors[0].pointer], [422, '/headers/X-Key']);
});

test('a changed subscription keeps its authentication, but sends no stored secret to a new origin', async () => {
  const app = await createApp(server);
  const made = await subscribe(app, { url, auth: { type: 'basic', username: 'a', password: secretText } });
  const patch = (json: object) => app.request('PATCH', `/subscriptions/${made.id}`, { json });
  assert.deepEqual((await patch({ description: 'x' })).body.auth, { type: 'basic', username: 'a' });
  assert.deepEqual((await patch({ url: `${url}/2` })).body.auth, { type: 'basic', username: 'a' });
  const refused = await patch({ url: 'https://other.example/' });
  assert.equal(refused.status, 422);
  assert.deepEqual(
    refused.body.errors.map(({ pointer, code }: Record<string, string>) => [pointer, code]),
    [['/auth', 'auth-required-again']],
  );
  const taken = await patch({ headers: { Authorization: 'Bearer x' } });
  assert.deepEqual([taken.status, taken.body.errors[0].pointer], [422, '/headers/Authorization']);
  // Replaced as a whole: a type does not inherit members of another one.
  assert.equal((await patch({ auth: { type: 'header', name: 'X-Key' } })).status, 422);
  const moved = await patch({ url: 'https://other.example/', auth: null });
  assert.deepEqual([moved.status, moved.body.auth], [200, null], moved.text);
  const { rows } = await sql<{ auth_secret: Buffer | null }>`
    select auth_secret from subscriptions where id = ${made.id}`.execute(server.db);
  assert.equal(rows[0]?.auth_secret, null);
});

test('nothing is sent if the grant is withdrawn while a token is requested', async (t) => {
  const { promise: isAsked, resolve: onAsked } = Promise.withResolvers<() => void>();
  const issuer = await startSubscriber(t, (_received, response) =>
    onAsked(() => response.end(JSON.stringify({ access_token: 'late', token_type: 'bearer' }))),
  );
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, {
    url: subscriber.url,
    auth: { ...basicCredentials, token_url: issuer.url },
  });
  await publish(publisher, app.account, [randomUUID()]);
  const respondNow = await isAsked;
  await app.request('DELETE', `/subscriptions/${id}`);
  respondNow();
  const other = await createApp(server);
  await subscribe(other, { url: subscriber.url });
  await publish(publisher, other.account, [randomUUID()]);
  await subscriber.waitFor(1);
  assert.deepEqual(
    subscriber.received.map(({ headers }) => headers.authorization),
    [undefined],
  );
});

test('the certificate is presented to those who ask for it, and only by subscriptions with mtls', async (t) => {
  const files = { NUNCIO_CLIENT_CERT_FILE: certFile, NUNCIO_CLIENT_KEY_FILE: keyFile };
  const resolveHost = async () => ['127.0.0.1'];
  const mutual = await startTestServer(t, files, 'dev', undefined, {
    resolveHost,
    extraCa: authorityCertificate,
  });
  const presented: string[] = [];
  const receiver = createTls(
    {
      cert: serverCertificate,
      key: serverKey,
      ca: machineAuthorityCertificate,
      requestCert: true,
      rejectUnauthorized: false,
    },
    (request, response) => {
      const { authorized } = request.socket as TLSSocket;
      presented.push(authorized ? 'certificate' : 'none');
      request.resume().on('end', () => response.writeHead(authorized ? 204 : 403).end());
    },
  );
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    receiver.closeAllConnections();
    receiver.close();
  });
  const { port } = receiver.address() as AddressInfo;
  const name = new X509Certificate(serverCertificate).subjectAltName?.replace(/^.*?DNS:([^,]+).*$/s, '$1');
  const target = `https://${name}:${port}/`;
  const app = await createApp(mutual);
  const own = await createPublisher(mutual);
  const { id } = await subscribe(app, { url: target, auth: { type: 'mtls' } });
  const plain = await createApp(mutual);
  const without = await subscribe(plain, { url: target });
  for (const each of [app, plain, app, plain]) await publish(own, each.account, [randomUUID()]);
  const statuses = async (of: App, subscription: string) => {
    const [attempt] = await attemptsOf(of, subscription);
    return attempt.status;
  };
  assert.equal(await statuses(app, id), 204);
  assert.equal(await statuses(plain, without.id), 403);
  assert.ok(presented.includes('certificate') && presented.includes('none'));

  const shown = await certificateOf(mutual.baseUrl);
  assert.ok(shown !== null);
  const certificate = new X509Certificate(shown.pem);
  assert.equal(certificate.fingerprint256.replaceAll(':', '').toLowerCase(), shown.sha256);
  assert.ok(!shown.pem.includes('PRIVATE'));
  assert.equal(await certificateOf(server.baseUrl), null);
});

const basicCredentials = {
  type: 'oauth2',
  token_url: 'https://example.com/token',
  client_id: 'nuncio',
  client_secret: secretText,
};

function respond(status: number, body: object): Behaviour {
  return (_received, response) => response.writeHead(status).end(JSON.stringify(body));
}

async function certificateOf(baseUrl: string): Promise<{ pem: string; sha256: string } | null> {
  const meta = (await (await fetch(`${baseUrl}/meta`)).json()) as {
    client_certificate: { pem: string; sha256: string } | null;
  };
  return meta.client_certificate;
}

test('requests for tokens that hang take two places of an account, and others get theirs', async (t) => {
  const hanging = new Set<ServerResponse>();
  const seen: string[] = [];
  const issuer = await startSubscriber(t, ({ headers }, response) => {
    const user = Buffer.from(headers.authorization?.slice(6) ?? '', 'base64')
      .toString()
      .split(':', 1)[0] as string;
    seen.push(user);
    if (user === 'hangs') return void hanging.add(response);
    const body = JSON.stringify({ access_token: 'token', token_type: 'Bearer', expires_in: 3_600 });
    response.writeHead(200, { 'content-type': 'application/json' }).end(body);
  });
  const subscriber = await startSubscriber(t);
  const authOf = (id: string) => ({
    ...{ type: 'oauth2', token_url: `${issuer.url}/token`, client_id: id, client_secret: secretText },
  });
  const hostile = await createApp(server);
  const stranger = await createApp(server);
  // A host that has accepted nothing gets few attempts, so there are several.
  for (let host = 0; host < 8; host += 1) {
    const { url } = await startSubscriber(t);
    for (let number = 0; number < 4; number += 1) await subscribe(hostile, { url, auth: authOf('hangs') });
  }
  const { id } = await subscribe(stranger, { url: subscriber.url, auth: authOf('stranger') });
  await publish(publisher, hostile.account, [randomUUID()]);
  await until(
    async () => hanging.size,
    (count) => count >= 2,
  );
  await publish(publisher, stranger.account, [randomUUID()]);
  const attempts = await attemptsOf(stranger, id);
  assert.deepEqual(
    attempts.map(({ status }: { status: number }) => status),
    [204],
  );
  for (const response of hanging) response.destroy();
});

test('a server that never issues a token gets few requests, however many subscriptions name it', async (t) => {
  const victim = await startSubscriber(t, (_received, response) => response.writeHead(404).end());
  const turns = new TokenTurns();
  const egress = createGuardedFetch({ allowLoopback: true });
  t.after(() => egress.close());
  const authorizer = new Authorizer(egress.fetch, false, turns);
  const auth = { type: 'oauth2', token_url: `${victim.url}/`, client_id: 'x', client_secret: 'x' } as const;
  const begunAt = performance.now();
  const failures = await Promise.all(
    Array.from({ length: 200 }, (_none, number) =>
      Promise.resolve(authorizer.authorize(`subscription ${number}`, `account ${number}`, auth)).catch(
        ({ message }: Error) => message,
      ),
    ),
  );
  const seconds = (performance.now() - begunAt) / 1_000;
  assert.ok(victim.received.length <= 20 + 5 * seconds + 1, `${victim.received.length} in ${seconds} s`);
  assert.ok(failures.includes('too many requests to the token URL are waiting'));
});

test('accounts whose requests for tokens have failed leave half of an authorization server to others', async () => {
  const turns = new TokenTurns();
  const issuer = 'https://issuer.example/token';
  await turns.run(issuer, 'known', async () => 'token');
  const hostile = Array.from({ length: 10 }, (_, index) => `hostile ${index}`);
  const fail = async () => {
    throw new Error('refused');
  };
  for (const account of hostile) await assert.rejects(turns.run(issuer, account, fail));
  const hanging = Promise.withResolvers<void>();
  let running = 0;
  const hang = () => {
    running += 1;
    return hanging.promise;
  };
  const hung = hostile.flatMap((account) => [1, 2].map(() => turns.run(issuer, account, hang)));
  assert.equal(await turns.run(issuer, 'stranger', async () => 'token'), 'token');
  assert.equal(running, 8);
  hanging.resolve();
  await Promise.all(hung);
});

test('requests for tokens that take longer leave their places to those of others, up to a limit', async () => {
  const turns = new TokenTurns();
  const issuer = 'https://issuer.example/token';
  await turns.run(issuer, 'known', async () => 'token');
  const hanging = Promise.withResolvers<void>();
  let running = 0;
  const hang = () => {
    running += 1;
    return hanging.promise;
  };
  const startHanging = (accounts: number) =>
    Array.from({ length: accounts }, () => randomUUID()).flatMap((account) =>
      [1, 2].map(() => turns.run(issuer, account, hang)),
    );
  const hung = startHanging(10);
  assert.equal(await turns.run(issuer, 'stranger', async () => 'token'), 'token');
  hung.push(...startHanging(30));
  await until(
    async () => running,
    (count) => count >= 64,
  );
  await sleep(600);
  assert.equal(running, 64);
  hanging.resolve();
  await Promise.all(hung);
});
