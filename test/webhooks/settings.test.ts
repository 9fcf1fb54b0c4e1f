/** The operator's webhook settings, and receivers written for GitHub and Stripe. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { verify as verifyGithub } from '@octokit/webhooks-methods';
import { sql } from 'kysely';
import Stripe from 'stripe';
import { Type } from 'typebox';
import { defineEventKind } from '../../src/events/kind.ts';
import { createPlatform, PlatformError } from '../../src/platform.ts';
import { defaultHeaderNames } from '../../src/webhooks/subscriptions/delivery_headers.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const push = defineEventKind({
  name: 'push',
  description: 'Commits arrived.',
  object: 'posts',
  schema: Type.Object({}),
  example: {},
});

test('webhooks 39: a receiver written for GitHub verifies with GitHub’s header names, and one for Stripe with Stripe’s', async (t) => {
  for (const preset of ['github', 'stripe'] as const) {
    const platform = createPlatform({
      eventKinds: [push],
      webhooks: { headers: preset, addresses: ['203.0.113.0/24'] },
    });
    const server = await startTestServer(t, {}, 'dev', platform);
    const subscriber = await startSubscriber(t);
    const app = await createApp(server);
    const signature = preset === 'github' ? 'sha256' : 'timestamp';
    const { secret } = await subscribe(app, { url: subscriber.url, signature });
    await publish(await createPublisher(server), app.account, ['x']);
    const [received] = await subscriber.waitFor(1);
    const headers = received?.headers as Record<string, string>;
    const body = received?.body as string;
    if (preset === 'github') {
      assert.ok(await verifyGithub(secret, body, headers['x-hub-signature-256'] as string));
      assert.equal(headers['x-github-event'], 'push');
      assert.match(headers['x-github-delivery'] as string, /^[0-9a-f-]{36}$/);
    } else {
      new Stripe('sk_test_nothing').webhooks.constructEvent(
        body,
        headers['stripe-signature'] as string,
        secret,
      );
    }
    const meta = (await (await fetch(`${server.baseUrl}/meta`)).json()) as Record<string, unknown>;
    assert.deepEqual(meta.addresses, ['203.0.113.0/24']);
  }
});

test('the operator renames the account headers in deliveries and at /meta, and subscribers cannot take the names', async (t) => {
  const names = { account: 'X-Tenant', accountExternalId: 'X-Tenant-Key' };
  const server = await startTestServer(
    t,
    {},
    'dev',
    createPlatform({ eventKinds: [push], webhooks: { headers: names } }),
  );
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await sql`update accounts set external_id = 'customer-7' where id = ${app.account.id}`.execute(server.db);
  await subscribe(app, { url: subscriber.url });
  await publish(await createPublisher(server), app.account, ['x']);
  const [received] = await subscriber.waitFor(1);
  assert.equal(received?.headers['x-tenant'], app.account.id);
  assert.equal(received?.headers['x-tenant-key'], 'customer-7');
  assert.equal(received?.headers['nuncio-account'], undefined);
  const meta = (await (await fetch(`${server.baseUrl}/meta`)).json()) as { headers: object };
  assert.deepEqual(meta.headers, { ...defaultHeaderNames, ...names });
  const json = { url: subscriber.url, kinds: ['*'], headers: { 'x-tenant': 'another' } };
  assert.equal((await app.request('POST', '/subscriptions', { json })).status, 422);
});

test('two headers of a delivery cannot have the same name', () => {
  for (const headers of [{ account: 'nuncio-event' }, { accountExternalId: 'Nuncio-Account' }])
    assert.throws(() => createPlatform({ webhooks: { headers } }), /two headers have the same name/);
});

test('all wrong settings are reported with their place', () => {
  const wrong = {
    headers: { event: 'Content-Type', delivery: 'a b', other: 'X' },
    addresses: ['x'],
    more: 1,
  };
  assert.throws(
    () => createPlatform({ webhooks: wrong as never }),
    (error) => {
      assert.ok(error instanceof PlatformError);
      const places = error.problems.map((problem) => problem.split(':')[0]).sort();
      assert.deepEqual(places, [
        'webhooks.addresses',
        'webhooks.headers.delivery',
        'webhooks.headers.event',
        'webhooks.headers.other',
        'webhooks.more',
      ]);
      return true;
    },
  );
});
