/** What the log records of each attempt. */

import assert from 'node:assert/strict';
import type { IncomingHttpHeaders } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import { attemptErrors } from '../../../src/webhooks/sending/attempt_error.ts';
import { signatureShapes } from '../../../src/webhooks/subscriptions/signature.ts';
import { formats } from '../../../src/webhooks/subscriptions/subscription.ts';
import { siteEgress, startSite } from '../../support/network/site.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../../support/webhooks/subscriber.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const publisher = await createPublisher(server);

interface AttemptShown {
  number: number;
  trigger: string;
  at: string;
  duration_ms: number;
  timings: Record<'dns_ms' | 'connect_ms' | 'tls_ms' | 'first_byte_ms', number | null>;
  connection: string | null;
  status: number | null;
  error: string | null;
  error_detail: string | null;
  revision: number;
  request: { method: string; url: string; headers: Record<string, string> };
  response: { headers: Record<string, string>; body: string; encoding: string; truncated: boolean } | null;
}

/** The id and the attempts of a subscription's only delivery, once it is in this state. */
async function attemptsOf(app: App, id: string, state: string): Promise<[string, AttemptShown[]]> {
  const { body } = await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries`),
    (page) => page.body.items[0]?.state === state,
  );
  const delivery = body.items[0].id as string;
  return [delivery, (await app.request('GET', `/deliveries/${delivery}`)).body.attempts];
}

test('webhooks 75: an attempt records number, trigger, times, address family, request, response, 16 KiB of body and error', async () => {
  const app = await createApp(server);
  let count = 0;
  site.serve('/record', (_request, response) => {
    count += 1;
    response.writeHead(count === 1 ? 500 : 200, { 'x-said': `answer ${count}` });
    response.end(count === 1 ? 'x'.repeat(20_000) : Buffer.from([0, 255]));
  });
  const url = site.url('/record');
  const { id, secret } = await subscribe(app, { url, retry_schedule: [1] });
  await publish(publisher, app.account, ['one']);
  const [delivery, [first, second]] = await attemptsOf(app, id, 'succeeded');
  assert.ok(first !== undefined && second !== undefined);
  assert.deepEqual(
    [first, second].map(({ number, trigger, status, error }) => [number, trigger, status, error]),
    [
      [1, 'schedule', 500, 'unexpected_status'],
      [2, 'schedule', 200, null],
    ],
  );
  const { dns_ms: dns, connect_ms: connect, tls_ms: tls, first_byte_ms: byte } = first.timings;
  assert.ok(dns !== null && connect !== null && tls !== null && byte !== null);
  assert.ok(dns >= 0 && connect >= 0 && tls > 0 && byte >= tls);
  assert.ok(first.duration_ms >= byte);
  assert.ok(Math.abs(Date.parse(first.at) - Date.now()) < 60_000);
  assert.ok(Date.parse(second.at) - Date.parse(first.at) >= first.duration_ms + 980);
  assert.equal(first.connection, 'new, IPv4');
  assert.equal(second.connection === 'kept' ? second.timings.tls_ms : null, null);
  assert.equal(first.error_detail, attemptErrors.unexpected_status);
  assert.equal(second.error_detail, null);
  assert.equal(first.response?.headers['x-said'], 'answer 1');
  assert.equal(first.response?.body, 'x'.repeat(16_384));
  assert.equal(first.response?.truncated, true);
  assert.deepEqual(
    [second.response?.body, second.response?.encoding, second.response?.truncated],
    [Buffer.from([0, 255]).toString('base64'), 'base64', false],
  );
  assert.equal(first.request.url, url);
  assert.equal(first.request.method, 'POST');

  assert.equal((await app.request('POST', `/deliveries/${delivery}/resend`)).status, 202);
  const { body } = await until(
    () => app.request('GET', `/deliveries/${delivery}`),
    (shown) => shown.body.attempts.length === 3,
  );
  assert.deepEqual([body.attempts[2].number, body.attempts[2].trigger], [3, 'manual']);
  assert.ok(!JSON.stringify(body).includes(secret));
});

test('webhooks 75: an attempt without a response has its error and no more', async () => {
  const app = await createApp(server);
  const closed = await startSubscriber({ after });
  const inside = await subscribe(app, { url: site.url('/', 'inside'), retry_schedule: [3_600] });
  const reset = await subscribe(app, { url: closed.url, retry_schedule: [3_600] });
  closed.behave((_received, response) => response.socket?.resetAndDestroy());
  await publish(publisher, app.account, ['one']);
  const [, [refused]] = await attemptsOfPending(app, inside.id);
  assert.deepEqual([refused?.status, refused?.response, refused?.error], [null, null, 'address_refused']);
  assert.equal(refused?.error_detail, attemptErrors.address_refused);
  assert.equal(refused?.timings.first_byte_ms, null);
  assert.equal(refused?.connection, null);
  const [, [broken]] = await attemptsOfPending(app, reset.id);
  assert.deepEqual([broken?.status, broken?.error], [null, 'connection_error']);
  assert.equal(broken?.connection, 'new, IPv4');
});

async function attemptsOfPending(app: App, id: string): Promise<[string, AttemptShown[]]> {
  await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries`),
    (page) => page.body.items[0]?.attempt_count === 1,
  );
  return attemptsOf(app, id, 'pending');
}

/** The headers that the log may show: signatures are masked. */
function masked(headers: IncomingHttpHeaders): Record<string, string> {
  const shown = Object.entries(headers).filter(([name]) => name !== 'connection');
  return Object.fromEntries(
    shown.map(([name, value]) => [
      name,
      /signature/.test(name) ? String(value).replace(/(v1a?[,=]|sha256=).*/, '$1***') : String(value),
    ]),
  );
}

/** Takes the time out of a signature. The signature has the second of the attempt; the recorded time may round up. */
function splitTime(headers: Record<string, string>): [Record<string, string>, number] {
  let time = Number.NaN;
  const entries = Object.entries(headers).map(([name, value]) => {
    const found = /^(?:t=)?(\d{10})(?=,|$)/.exec(value);
    if (found === null) return [name, value];
    time = Number(found[1]);
    return [name, value.replace(found[1] as string, '<time>')];
  });
  return [Object.fromEntries(entries), time];
}

test('webhooks 75: an attempt records the request headers as sent, without what reveals a signature', async (t) => {
  for (const signature of signatureShapes) {
    for (const format of formats) {
      const subscriber = await startSubscriber(t);
      const app = await createApp(server);
      const { id } = await subscribe(app, { url: `${subscriber.url}/hooks?a=b`, signature, format });
      await publish(publisher, app.account, ['Zoë 🚀']);
      const [received] = await subscriber.waitFor(1);
      const [, [attempt]] = await attemptsOf(app, id, 'succeeded');
      const lower = Object.entries(attempt?.request.headers ?? {}).map(([name, value]) => [
        name.toLowerCase(),
        value,
      ]);
      const [recorded, recordedTime] = splitTime(Object.fromEntries(lower));
      const [sent, sentTime] = splitTime(masked(received?.headers ?? {}));
      assert.deepEqual(recorded, sent, `${signature} ${format}`);
      if (signature !== 'sha256') assert.ok(Math.abs(recordedTime - sentTime) <= 1);
      assert.equal(attempt?.request.url, `${subscriber.url}/hooks?a=b`);
    }
  }
});

test('webhooks 61: each attempt shows its URL and body format for as long as it is kept', async (t) => {
  const [old, next] = [await startSubscriber(t, answer(500)), await startSubscriber(t)];
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: old.url, signature: 'sha256', retry_schedule: [2] });
  await publish(publisher, app.account, ['moved']);
  await old.waitFor(1);
  await app.request('PATCH', `/subscriptions/${id}`, { json: { url: next.url, signature: 'standard' } });
  const [delivery, attempts] = await attemptsOf(app, id, 'succeeded');
  assert.deepEqual(
    attempts.map(({ request, revision }) => [new URL(request.url).origin, revision]),
    [
      [old.url, 1],
      [next.url, 2],
    ],
  );
  assert.equal(attempts[0]?.request.headers['Nuncio-Signature'], 'sha256=***');
  assert.equal(attempts[1]?.request.headers['webhook-signature'], 'v1,***');
  const shown = async () => (await app.request('GET', `/deliveries/${delivery}`)).body.attempts;
  await applyRetention(server.db);
  assert.notEqual((await shown())[0].request, null);
  await sql`update subscription_revisions set created_at = created_at - interval '40 days'`.execute(
    server.db,
  );
  await applyRetention(server.db);
  assert.equal((await shown())[0].request, null);
  assert.notEqual((await shown())[1].request, null);
});

test('a delivery with a thousand attempts is not sent again, so that its log stays short', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, [1, 2]);
  const { body: page } = await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries?status=succeeded`),
    ({ body }) => body.items.length === 2,
  );
  const older = page.items[1].id as string;
  await sql`
    insert into attempts (day, lane, sequence, started_at, number, trigger, status, truncated, revision, duration_ms)
    select day, lane, sequence, started_at, other, 'm', 204, false, 1, 1
    from attempts, generate_series(2, 999) as other
    where sequence = 1 and lane = (select lane from subscriptions where id = ${id})`.execute(server.db);
  const resend = () => app.request('POST', `/deliveries/${older}/resend`);
  assert.equal((await resend()).status, 202);
  await subscriber.waitFor(3);
  await until(resend, ({ body }) => body.code === 'too-many-attempts');
  const { body: shown } = await until(
    () => app.request('GET', `/deliveries/${older}`),
    ({ body }) => body.attempt_count === 1_000,
  );
  const triggers = shown.attempts.map(({ number, trigger }: AttemptShown) => `${number} ${trigger}`);
  assert.equal(triggers.length, 100);
  assert.deepEqual(triggers.slice(-2), ['999 manual', '1000 manual']);
  const since = new Date(Date.now() - 60_000).toISOString();
  const job = await app.request('POST', `/subscriptions/${id}/recover`, {
    json: { since, status: 'succeeded' },
  });
  const { body: done } = await until(
    () => app.request('GET', job.headers.get('location') ?? ''),
    ({ body }) => body.state === 'done',
  );
  assert.equal(done.resent, 1);
  const received = await subscriber.waitFor(4);
  assert.equal(received[3]?.headers['nuncio-sequence'], '2');
});
