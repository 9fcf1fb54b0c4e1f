/** What has no turn at the name server in time was not tried: it is nobody's failure. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { after, type TestContext, test } from 'node:test';
import { NoTurnError } from '../../../src/shared/limited_work.ts';
import { authorityCertificate, serverCertificate, serverKey } from '../../support/network/certificates.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';

/** How often a name has no turn. */
const without = new Map<string, number>();
const resolveHost = async (name: string) => {
  const left = without.get(name) ?? 0;
  if (left === 0) return ['127.0.0.1'];
  without.set(name, left - 1);
  throw new NoTurnError();
};
const server = await startTestServer({ after }, {}, 'dev', undefined, {
  resolveHost,
  extraCa: authorityCertificate,
});
const publisher = await createPublisher(server);

type Handle = (request: IncomingMessage, response: ServerResponse, body: string) => void;

async function startHost(t: TestContext, handle: Handle): Promise<number> {
  const host = createServer({ cert: serverCertificate, key: serverKey }, (request, response) => {
    let body = '';
    request
      .on('data', (chunk) => {
        body += chunk;
      })
      .on('end', () => handle(request, response, body));
  });
  await new Promise<void>((resolve) => host.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    host.closeAllConnections();
    host.close();
  });
  return (host.address() as AddressInfo).port;
}

async function attemptsOf({ request }: App, subscription: string) {
  const { items } = await until(
    async () => (await request('GET', `/subscriptions/${subscription}/deliveries`)).body,
    (body) => body.items.length > 0 && body.items[0].attempt_count >= 1,
  );
  return (await request('GET', `/deliveries/${items[0].id}`)).body.attempts;
}

test('a delivery whose name has no turn is sent later, as the first attempt', async (t) => {
  const port = await startHost(t, (_request, response) => response.writeHead(204).end());
  const app = await createApp(server);
  without.set('one.apps.example', 3);
  const { id } = await subscribe(app, { url: `https://one.apps.example:${port}/` });
  await publish(publisher, app.account, [randomUUID()]);
  const attempts = await attemptsOf(app, id);
  assert.deepEqual(
    attempts.map(({ status, error }: { status: number; error: unknown }) => [status, error]),
    [[204, null]],
  );
  assert.equal(without.get('one.apps.example'), 0);
});

test('a delivery whose token URL has no turn is sent later, as the first attempt', async (t) => {
  const receiver = await startHost(t, (_request, response) => response.writeHead(204).end());
  const issuer = await startHost(t, (_request, response) =>
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(JSON.stringify({ access_token: 'token', token_type: 'Bearer', expires_in: 3_600 })),
  );
  const app = await createApp(server);
  const { id } = await subscribe(app, {
    url: `https://two.apps.example:${receiver}/`,
    auth: {
      type: 'oauth2',
      token_url: `https://one.apps.example:${issuer}/token`,
      client_id: 'app',
      client_secret: 'word',
    },
  });
  without.set('one.apps.example', 2);
  await publish(publisher, app.account, [randomUUID()]);
  const attempts = await attemptsOf(app, id);
  assert.deepEqual(
    attempts.map(({ status }: { status: number }) => status),
    [204],
  );
  assert.equal(without.get('one.apps.example'), 0);
});

test('a handshake whose name has no turn can be repeated, and counts as no failure', async (t) => {
  const port = await startHost(t, (_request, response, body) =>
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(JSON.stringify({ challenge: JSON.parse(body).challenge })),
  );
  const app = await createApp(server);
  without.set('one.apps.example', 12);
  const create = () =>
    app.request('POST', '/subscriptions', {
      json: { url: `https://one.apps.example:${port}/`, kinds: ['push'], handshake: true },
    });
  for (let count = 0; count < 12; count += 1) {
    const { status, headers } = await create();
    assert.deepEqual([status, headers.get('retry-after')], [503, '5']);
  }
  assert.equal((await create()).status, 201);
});
