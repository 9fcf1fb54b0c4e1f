/**
 * Users of an app with very many subscriptions. Quotas are counted at each creation and at each `GET /api`: neither must cost what the app or
 * the installation has, or let the app's users wait for each other.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createSealer } from '../../src/crypto/sealing.ts';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { createSubscription } from '../../src/webhooks/subscriptions/subscription.ts';
import { SubscriptionQuotas } from '../../src/webhooks/subscriptions/subscription_quotas.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, mintAccessToken } from '../support/clients/oauth.ts';
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { type App, addPaused, appScopes, createApp } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const json = { url: 'https://example.com/hooks', kinds: ['push'] };

/** Another user of the app. */
async function addUser({ clientId }: App): Promise<App> {
  const account = await createTestAccount(server);
  const options = { account, client: { id: clientId }, scopes: appScopes };
  const { accessToken, grantId } = await mintAccessToken(server, options);
  return {
    ...{ account, clientId, accessToken, grantId: grantId as string },
    request: requester(server, accessToken),
  };
}

/** Subscriptions of apps themselves, 20 for each. */
async function addOwnOfApps(apps: number): Promise<void> {
  await sql`
    insert into subscriptions (id, lane, owner, client_id, url, kinds, signature, secret)
    select gen_random_uuid(), ('x' || substr(md5(random()::text), 1, 13))::bit(52)::bigint, 'client', 'app ' || app,
      'http://127.0.0.1:9/', '{push}', 'timestamp', ''
    from generate_series(1, ${apps}::int) as app, generate_series(1, 20)`.execute(db);
}

test('attack: quotas are counted without the subscriptions of other users and other apps', async () => {
  const first = await createApp(server);
  await addPaused(db, first, 3_000);
  await addOwnOfApps(500);
  const users = await Promise.all(Array.from({ length: 20 }, () => addUser(first)));
  await sql`analyze`.execute(db);
  for (const mode of planModes) {
    const read = await captureStatements(mode, () =>
      Promise.all(users.map(({ request }) => request('GET', '/api'))),
    );
    // The app is counted a few times, for all of its users.
    assert.ok(rowsOf(read) > 0 && rowsOf(read) < 30_000, `${rowsOf(read)} rows (${mode})`);
    const created = await captureStatements(mode, async () => {
      for (const { request } of users)
        assert.equal((await request('POST', '/subscriptions', { json })).status, 201);
    });
    assert.ok(rowsOf(created) > 0 && rowsOf(created) < 30_000, `${rowsOf(created)} rows (${mode})`);
  }
});

test('attack: creations of an app’s users do not wait for one that does not end', async () => {
  const [one, other] = [await createApp(server), await createApp(server)];
  const another = await addUser(one);
  const isMade = Promise.withResolvers<void>();
  const mayEnd = Promise.withResolvers<void>();
  const making = db.transaction().execute(async (tx) => {
    const made = await createSubscription(
      tx,
      { kind: 'grant', grantId: one.grantId, accountId: one.account.id, clientId: one.clientId },
      {
        ...{ url: 'https://example.com/', kinds: ['push'], signature: 'timestamp', format: 'json' },
        ...{ version: null, ordered: false, handshake: false, rateLimit: null, description: '' },
        ...{ retrySchedule: null, filter: null },
      },
      makeSecret(),
      createSealer(testSecret, 'subscription-secret'),
      new SubscriptionQuotas(db),
    );
    assert.ok(made);
    isMade.resolve();
    await mayEnd.promise;
  });
  await isMade.promise;
  try {
    for (const { request } of [another, other])
      assert.equal((await request('POST', '/subscriptions', { json })).status, 201);
  } finally {
    mayEnd.resolve();
    await making;
  }
});
