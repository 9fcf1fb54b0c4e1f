/** The signature vectors, and the unmodified verification libraries of subscribers on real deliveries. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { verify as verifyGithub } from '@octokit/webhooks-methods';
import { Webhook as StandardWebhook } from 'standardwebhooks';
import Stripe from 'stripe';
import { Webhook as SvixWebhook } from 'svix';
import {
  isSecret,
  makeSecret,
  signSha256,
  signStandard,
  signTimestamp,
  standardKey,
  textKey,
} from '../../../src/webhooks/subscriptions/signature.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const stripe = new Stripe('sk_test_nothing');

const secretA = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
const idA = 'msg_p5jXN8AQM9LWM0D4loKWxJek';
const timestampA = 1_614_265_330;

test('webhooks 37: the Standard Webhooks vectors verify', () => {
  const sign = (secret: string, id: string, timestamp: number, body: string) =>
    signStandard([standardKey(secret)], id, timestamp, Buffer.from(body));
  assert.equal(
    sign(secretA, idA, timestampA, '{"test": 2432232314}'),
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
  );
  assert.equal(
    sign(
      'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD',
      'msg_27UH4WbU6Z5A5EzD8u03UvzRbpk',
      1_649_367_553,
      '{"email":"test@example.com","username":"test_user"}',
    ),
    'v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=',
  );
  assert.equal(sign(secretA, idA, timestampA, ''), 'v1,v48jdbgvh29KJz2Qc+ghw8G6vG3nAKnujWBg8oM/62A=');
  assert.equal(
    sign(secretA, idA, timestampA, '{"name":"Zoë 🚀"}'),
    'v1,UIIYqyWKzXJf0cc8PHV1DeJyoJm4DEe8IXHdvW7refs=',
  );
});

test('webhooks 37: the GitHub and Stripe vectors verify', () => {
  const secret = "It's a Secret to Everybody";
  assert.equal(
    signSha256([textKey(secret)], Buffer.from('Hello, World!')),
    'sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17',
  );
  assert.equal(
    signSha256([textKey(secret)], Buffer.from('{"name":"Zoë 🚀"}')),
    'sha256=826ac3b6f178959ca38da444d7bbf40618f341e238009c52f5ee0aa89f9d514f',
  );
  const body = JSON.stringify({ id: 'evt_test_webhook', object: 'event' }, null, 2);
  assert.equal(
    signTimestamp([textKey('whsec_test_secret')], timestampA, Buffer.from(body)),
    't=1614265330,v1=af4ead0627a34a8cca29808e8de9ada8e41a92e6237c63cef6eacf51d36cca34',
  );
});

test('webhooks 37: a signature has one value per live secret, newest first, as far as they fit', () => {
  const body = Buffer.from('{}');
  const [newer, older] = [textKey('new'), textKey('old')];
  const both = signTimestamp([newer, older], 1, body);
  assert.match(both, /^t=1,v1=[0-9a-f]{64},v1=[0-9a-f]{64}$/);
  assert.equal(both.split(',')[1], signTimestamp([newer], 1, body).split(',')[1]);
  assert.equal(both.split(',')[2], signTimestamp([older], 1, body).split(',')[1]);
  assert.equal(signSha256([newer, older], body), signSha256([older], body));
  const keys = [standardKey('bmV3'), standardKey('b2xk')];
  assert.equal(
    signStandard(keys, 'id', 1, body),
    keys.map((key) => signStandard([key], 'id', 1, body)).join(' '),
  );
});

test('webhooks 12: secrets are whsec_ and 32 random bytes in base64; given ones have 24 to 64', async () => {
  const secret = makeSecret();
  assert.equal(Buffer.from(secret.slice('whsec_'.length), 'base64').length, 32);
  assert.notEqual(makeSecret(), secret);
  const ofBytes = (bytes: number) => `whsec_${Buffer.alloc(bytes, 7).toString('base64')}`;
  assert.deepEqual([23, 24, 64, 65].map(ofBytes).map(isSecret), [false, true, true, false]);
  for (const text of ['whsec_', 'whsec_???', secret.slice(6), `${secret}!`, ''])
    assert.ok(!isSecret(text), text);
  const app = await createApp(server);
  const json = { url: 'https://example.com/', kinds: ['push'], secret: ofBytes(23) };
  const refused = await app.request('POST', '/subscriptions', { json });
  assert.equal(refused.status, 422);
  assert.equal(refused.body.errors[0].pointer, '/secret');
  const taken = await app.request('POST', '/subscriptions', { json: { ...json, secret: ofBytes(24) } });
  assert.equal(taken.body.secret, ofBytes(24));
});

/** Publishes one event to a subscription with this signature. @returns the request received and the secret */
async function receive(signature: string): Promise<{ received: Received; secret: string }> {
  const scope = { after };
  const subscriber = await startSubscriber(scope);
  const app = await createApp(server);
  const { secret } = await subscribe(app, { url: subscriber.url, signature });
  await publish(publisher, app.account, ['Zoë 🚀']);
  const [received] = await subscriber.waitFor(1);
  return { received: received as Received, secret };
}

test('webhooks 38: Stripe’s own library verifies `timestamp`', async () => {
  const { received, secret } = await receive('timestamp');
  const header = received.headers['nuncio-signature'] as string;
  stripe.webhooks.constructEvent(received.body, header, secret);
  assert.throws(() => stripe.webhooks.constructEvent(`${received.body} `, header, secret));
  assert.throws(() => stripe.webhooks.constructEvent(received.body, header, makeSecret()));
});

test('webhooks 38: GitHub’s own library verifies `sha256`', async () => {
  const { received, secret } = await receive('sha256');
  const header = received.headers['nuncio-signature'] as string;
  assert.ok(await verifyGithub(secret, received.body, header));
  assert.ok(!(await verifyGithub(secret, `${received.body} `, header)));
});

test('webhooks 38: the libraries of Standard Webhooks and Svix verify `standard`', async () => {
  const { received, secret } = await receive('standard');
  const headers = received.headers as Record<string, string>;
  new StandardWebhook(secret).verify(received.body, headers);
  new SvixWebhook(secret).verify(received.body, headers);
  assert.throws(() => new StandardWebhook(secret).verify(`${received.body} `, headers));
  assert.throws(() => new StandardWebhook(makeSecret()).verify(received.body, headers));
  assert.match(headers['webhook-id'] as string, /^[0-9a-f-]{36}$/);
  assert.equal(headers['nuncio-event'], 'push');
  assert.equal(headers['nuncio-sequence'], '1');
  assert.equal(headers['nuncio-signature'], undefined);
});

test('webhooks 34: a request has method, content type, exact length, identity encoding and user agent', async () => {
  const { received } = await receive('timestamp');
  const { headers, body } = received;
  assert.equal(headers['content-type'], 'application/json');
  assert.equal(headers['content-length'], String(Buffer.byteLength(body)));
  assert.equal(headers['accept-encoding'], 'identity');
  assert.match(headers['user-agent'] as string, /^Nuncio\/\d+\.\d+\.\d+/);
  assert.equal(headers['nuncio-attempt'], '1');
  assert.match(
    headers['nuncio-delivery'] as string,
    /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
  );
});

test('webhooks 42: no cookies, tokens or trace headers are sent', async () => {
  const { received } = await receive('timestamp');
  for (const name of [
    'cookie',
    'authorization',
    'traceparent',
    'x-request-id',
    'forwarded',
    'x-forwarded-for',
  ]) {
    assert.equal(received.headers[name], undefined, name);
  }
});

test('webhooks 40: both secrets sign during the overlap, and afterwards the new one alone', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id, secret: old } = await subscribe(app, { url: subscriber.url });
  const rotate = (json: unknown) => app.request('POST', `/subscriptions/${id}/rotate-secret`, { json });
  let count = 0;
  const signedBy = async (secret: string) => {
    count += 1;
    await publish(publisher, app.account, [count]);
    const received = (await subscriber.waitFor(count)).at(-1) as Received;
    try {
      stripe.webhooks.constructEvent(received.body, received.headers['nuncio-signature'] as string, secret);
      return true;
    } catch {
      return false;
    }
  };
  // Nodes notice a new secret within a second.
  const untilSignedBy = (secret: string) => until(() => signedBy(secret), Boolean);
  const { body: overlapping } = await rotate({ overlap: 30 });
  assert.notEqual(overlapping.secret, old);
  assert.equal(overlapping.previous_secret, old);
  await untilSignedBy(overlapping.secret);
  assert.ok(await signedBy(old));
  assert.ok(await signedBy(overlapping.secret));
  const { body: short } = await rotate({ overlap: 1 });
  assert.equal(short.previous_secret, overlapping.secret);
  await until(
    () => signedBy(overlapping.secret),
    (isSigned) => !isSigned,
  );
  assert.ok(await signedBy(short.secret));
  assert.ok(!(await signedBy(old)));
  const { body: revoked } = await rotate({ overlap: 0 });
  assert.equal(revoked.previous_secret, null);
  await untilSignedBy(revoked.secret);
  assert.ok(!(await signedBy(short.secret)));
  const { body: shown } = await app.request('GET', `/subscriptions/${id}/secret`);
  assert.equal(shown.secret, revoked.secret);
  assert.equal((await rotate({ overlap: 604_801 })).status, 422);
});
