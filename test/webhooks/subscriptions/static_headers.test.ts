/** Static headers of a subscription: sent with every attempt, sealed at rest, never read back, masked in the log. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const url = 'https://example.com/hooks';

async function attemptsOf(request: Awaited<ReturnType<typeof createApp>>['request'], delivery: string) {
  const details = await until(
    async () => (await request('GET', `/deliveries/${delivery}`)).body,
    (body) => body.attempts.length > 0,
  );
  return details.attempts;
}

test('static headers are sent, sealed, masked in every response and changed one by one', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const headers = { 'X-Api-Key': 'a very secret value', Authorization: 'Basic dXNlcjpwYXNz' };
  const made = await subscribe(app, { url: subscriber.url, headers });
  const masked = { 'X-Api-Key': '***', Authorization: '***' };
  assert.deepEqual(made.headers, masked);
  const path = `/subscriptions/${made.id}`;
  assert.deepEqual((await app.request('GET', path)).body.headers, masked);
  const { rows } = await sql<{ row: string }>`
    select subscriptions::text || encode(headers, 'escape') as row from subscriptions where id = ${made.id}`.execute(
    server.db,
  );
  assert.ok(!rows[0]?.row.includes('secret value') && !rows[0]?.row.includes('dXNlcj'));

  const first = await app.request('POST', `${path}/test`);
  const [received] = await subscriber.waitFor(1);
  assert.equal(received?.headers['x-api-key'], headers['X-Api-Key']);
  assert.equal(received?.headers.authorization, headers.Authorization);
  const [attempt] = await attemptsOf(app.request, first.body.delivery);
  assert.deepEqual(
    [attempt.request.headers['X-Api-Key'], attempt.request.headers.Authorization],
    ['***', '***'],
  );

  const patch = { headers: { 'x-api-key': '***', Authorization: null, 'X-Tenant': '42' } };
  const changed = await app.request('PATCH', path, { json: patch });
  assert.deepEqual(changed.body.headers, { 'X-Api-Key': '***', 'X-Tenant': '***' }, changed.text);
  await app.request('POST', `${path}/test`);
  const second = (await subscriber.waitFor(2))[1];
  assert.deepEqual(
    [second?.headers['x-api-key'], second?.headers['x-tenant'], second?.headers.authorization],
    [headers['X-Api-Key'], '42', undefined],
  );
  const again = await attemptsOf(app.request, first.body.delivery);
  assert.equal(again[0].request.headers.Authorization, '***', 'the log shows the headers of that attempt');
  assert.deepEqual((await app.request('PATCH', path, { json: { headers: null } })).body.headers, {});
});

test('webhooks 15: names that HTTP or signatures use and values that end a line are refused', async () => {
  const app = await createApp(server);
  const refused = [
    ...[
      'Host',
      'Content-Length',
      'content-type',
      'Transfer-Encoding',
      'Connection',
      'TE',
      'Trailer',
      'Upgrade',
    ],
    ...[
      'Expect',
      'Keep-Alive',
      'Proxy-Authorization',
      'User-Agent',
      'Accept-Encoding',
      'Cookie',
      'Set-Cookie',
    ],
    ...[
      'Nuncio-Signature',
      'nuncio-anything',
      'webhook-id',
      'Webhook-Signature',
      'X-Forwarded-For',
      'Forwarded',
    ],
    ...['traceparent', 'Range', 'If-None-Match', 'Sec-Fetch-Site', 'Signature-Input', 'HTTP2-Settings'],
  ];
  for (const name of refused) {
    const json = { url, kinds: ['*'], headers: { [name]: 'x' } };
    const { status, body } = await app.request('POST', '/subscriptions', { json });
    assert.deepEqual([status, body.code], [422, 'header-refused'], name);
  }
  const wrong: unknown[] = [
    { 'X-A': 'x\r\nX-B: y' },
    { 'X-A': 'x\ny' },
    { 'X-A': '' },
    { 'X-A': ' x' },
    { 'X-A': 'ä' },
    { 'X-A': 'x'.repeat(1_025) },
    { 'X-A': 7 },
    { 'X-A': null },
    { 'X-A': '***' },
    { 'X A': 'x' },
    { 'X-A:': 'x' },
    { ':path': 'x' },
    { '': 'x' },
    { ['X'.repeat(65)]: 'x' },
    { 'X-A': 'x', 'x-a': 'y' },
    Object.fromEntries(Array.from({ length: 11 }, (_, index) => [`X-${'a'.repeat(index + 1)}`, 'x'])),
    [],
    'x',
  ];
  for (const headers of wrong) {
    const json = { url, kinds: ['*'], headers };
    const { status, text } = await app.request('POST', '/subscriptions', { json });
    assert.equal(status, 422, `${JSON.stringify(headers)}: ${text}`);
  }
  const ten = Object.fromEntries(
    Array.from({ length: 10 }, (_, index) => [`X-${'a'.repeat(index + 1)}`, 'x']),
  );
  const { id } = await subscribe(app, { url, headers: ten });
  const one = await app.request('PATCH', `/subscriptions/${id}`, { json: { headers: { 'X-More': 'x' } } });
  assert.equal(one.status, 422);
  const kept = await app.request('PATCH', `/subscriptions/${id}`, { json: { headers: { 'X-New': '***' } } });
  assert.equal(kept.status, 422, 'a value that is not there cannot be kept');
});

test('values are not sent to a new origin unless they are given again', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url, headers: { 'X-Api-Key': 'secret', 'X-Old': 'x' } });
  const path = `/subscriptions/${id}`;
  const elsewhere = 'https://example.org/hooks';
  for (const headers of [undefined, { 'X-Api-Key': '***', 'X-Old': null }, { 'X-Api-Key': 'secret' }]) {
    const json = { url: elsewhere, ...(headers === undefined ? {} : { headers }) };
    const { status, body } = await app.request('PATCH', path, { json });
    assert.deepEqual([status, body.code], [422, 'header-value-required'], JSON.stringify(headers));
    assert.equal((await app.request('GET', path)).body.url, url);
  }
  const same = await app.request('PATCH', path, { json: { url: 'https://example.com/other' } });
  assert.equal(same.status, 200);
  const json = { url: elsewhere, headers: { 'X-Api-Key': 'secret', 'X-Old': null } };
  const moved = await app.request('PATCH', path, { json });
  assert.deepEqual([moved.status, moved.body.headers], [200, { 'X-Api-Key': '***' }]);
});
