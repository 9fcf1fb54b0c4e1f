/** Subscriptions of agents in the database: one for each key, quotas, and how they end. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import pg from 'pg';
import { createGrant, endClient, withdrawGrant } from '../../../src/grants/grant.ts';
import {
  type AgentQuotas,
  endExpiredAgents,
  findAgentSubscription,
  type NewAgentSubscription,
  renewAgentSubscription,
  unsubscribeAgent,
} from '../../../src/webhooks/subscriptions/agent_subscription.ts';
import { QuotaExceeded } from '../../../src/webhooks/subscriptions/subscription_quotas.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { addAgentSubscription } from '../../support/webhooks/agent_subscriptions.ts';
import { type App, appScopes, createApp, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const hourMs = 3_600_000;

// The engine tells agents at once, and forgets that it had to.
await sql`create table once_untold (id uuid)`.execute(db);
await sql`
  create function keep_untold() returns trigger language plpgsql set search_path from current as $$
  begin insert into once_untold values (new.id); return null; end $$`.execute(db);
await sql`
  create trigger keep_untold after update on agent_subscriptions
  for each row when (new.last_secret is not null) execute function keep_untold()`.execute(db);

async function create(app: App, fields: Partial<NewAgentSubscription> = {}, limits?: AgentQuotas) {
  const made = await addAgentSubscription(db, app, fields, limits);
  assert.ok(made);
  return made;
}

async function ending(id: string) {
  const { rows } = await sql<{ end_reason: string | null; state: string; is_untold: boolean }>`
    select a.end_reason, s.state, a.id in (select id from once_untold) as is_untold
    from agent_subscriptions a join subscriptions s on s.id = a.id where a.id = ${id}`.execute(db);
  return rows[0];
}

const expire = (id: string) =>
  sql`update agent_subscriptions set expires_at = now() - interval '1 second' where id = ${id}`.execute(db);

test('agents 32, 80: concurrent subscriptions with one key are one, for each mode', async () => {
  const app = await createApp(server);
  const made = await Promise.all(Array.from({ length: 8 }, () => create(app)));
  assert.equal(new Set(made.map(({ subscription }) => subscription.id)).size, 1);
  assert.equal(made.filter(({ isNew }) => isNew).length, 1);
  const polled = await create(app, { mode: 'poll', url: null });
  assert.equal(polled.isNew, true);
  const { body } = await app.request('GET', '/subscriptions');
  const shown = body.items.map(({ url, agent }: { url: string; agent: unknown }) => ({ url, agent }));
  const [sent, asked] = [made[0]?.subscription, polled.subscription];
  assert.deepEqual(shown, [
    {
      url: 'https://hooks.example.com/cb',
      agent: { mode: 'webhook', expires_at: sent?.expiresAt.toISOString() },
    },
    { url: null, agent: { mode: 'poll', expires_at: asked.expiresAt.toISOString() } },
  ]);
});

test('agents 32: the same call of another grant makes another subscription', async () => {
  const one = await create(await createApp(server));
  const other = await create(await createApp(server));
  assert.notEqual(one.subscription.key, other.subscription.key);
  assert.notEqual(one.subscription.id, other.subscription.id);
});

test('agents 36: quotas count live subscriptions of a grant and of an account, also concurrently', async () => {
  const app = await createApp(server);
  const limits = { subscriptionsPerGrant: 3, subscriptionsPerAccount: 8 };
  const attempt = (of: App, index: number) =>
    create(of, { arguments: `{"ref":"${index}"}` }, limits).catch((error: unknown) => error);
  const results = await Promise.all(Array.from({ length: 6 }, (_, index) => attempt(app, index)));
  const refused = results.filter((each) => each instanceof QuotaExceeded);
  assert.equal(refused.length, 3);
  assert.deepEqual(refused[0]?.quota, { name: 'grant_subscriptions', limit: 3 });
  const sibling = await createApp(server, { account: app.account });
  const made: unknown[] = [];
  for (let index = 0; index < 3; index += 1) made.push(await attempt(sibling, index));
  const last = made.pop() as QuotaExceeded;
  assert.ok(made.every((each) => !(each instanceof Error)));
  assert.deepEqual(last.quota, { name: 'account_subscriptions', limit: 8 });
});

test('other subscriptions of an account use up no quota of its agents', async () => {
  const app = await createApp(server);
  const agent = await createApp(server, { account: app.account });
  const limits = { subscriptionsPerGrant: 2, subscriptionsPerAccount: 2 };
  for (let index = 0; index < 3; index += 1)
    await subscribe(app, { url: 'https://example.com/hooks', kinds: ['push'] });
  assert.equal((await create(app, {}, limits)).isNew, true);
  assert.equal((await create(agent, {}, limits)).isNew, true);
});

test('an app with many grants of a user leaves some of the quota to other agents', async () => {
  const app = await createApp(server);
  const limits = { subscriptionsPerGrant: 4, subscriptionsPerAccount: 16 };
  const countOf = async (of: App, grants: number) => {
    let count = 0;
    for (let grant = 0; grant < grants; grant += 1) {
      const grantId = await createGrant(db, {
        accountId: of.account.id,
        clientId: of.clientId,
        scopes: appScopes,
      });
      for (let index = 0; index < 4; index += 1) {
        const made = create({ ...of, grantId }, { arguments: `{"ref":"${index}"}` }, limits);
        count += await made.then(
          () => 1,
          () => 0,
        );
      }
    }
    return count;
  };
  const other = await createApp(server, { account: app.account });
  assert.deepEqual([await countOf(app, 4), await countOf(other, 4)], [7, 4]);
});

test('agents 55: expiry and unsubscribing end a subscription silently', async () => {
  const app = await createApp(server);
  const { subscription } = await create(app);
  await db.transaction().execute((tx) => unsubscribeAgent(tx, subscription.key, 'webhook'));
  assert.deepEqual(await ending(subscription.id), {
    end_reason: 'unsubscribed',
    state: 'ended',
    is_untold: false,
  });
  const expiring = await create(app);
  assert.equal(expiring.isNew, true);
  await expire(expiring.subscription.id);
  assert.equal(await findAgentSubscription(db, subscription.key, 'webhook'), undefined);
  assert.equal(await endExpiredAgents(db), 1);
  assert.deepEqual(await ending(expiring.subscription.id), {
    end_reason: 'expired',
    state: 'ended',
    is_untold: false,
  });
});

/** Each way in which the right ends. */
const ends: Record<string, (app: App, id: string) => Promise<unknown>> = {
  'the grant is withdrawn': ({ grantId }) => withdrawGrant(db, grantId, 'user'),
  'the grant loses the scope': ({ grantId }) =>
    sql`update grants set scopes = array_remove(scopes, 'read:posts') where id = ${grantId}`.execute(db),
  'the app is deleted': ({ clientId }) => endClient(db, clientId),
  'the app is disabled': ({ clientId }) =>
    sql`update clients set disabled_at = now() where id = ${clientId}`.execute(db),
  'the account is disabled': ({ account }) =>
    sql`update accounts set disabled_at = now() where id = ${account.id}`.execute(db),
  'the user deletes it': (app, id) => app.request('DELETE', `/subscriptions/${id}`),
};

for (const [how, end] of Object.entries(ends)) {
  test(`agents 81: a subscription ends, and its agent is told, when ${how}`, async (t) => {
    const app = await createApp(server);
    const callback = await startSubscriber(t);
    const { subscription } = await create(app, { url: callback.url, format: 'agent' });
    const polled = await create(app, { mode: 'poll', url: null });
    await end(app, subscription.id);
    const [told] = await callback.waitFor(1);
    assert.equal(JSON.parse(told?.body ?? '').type, 'terminated');
    assert.deepEqual(await ending(subscription.id), {
      end_reason: 'revoked',
      state: 'ended',
      is_untold: true,
    });
    const isBoth = how !== 'the user deletes it';
    const ofPoll = isBoth ? { end_reason: 'revoked', state: 'ended' } : { end_reason: null, state: 'active' };
    assert.deepEqual(await ending(polled.subscription.id), { ...ofPoll, is_untold: false });
  });
}

test('a lost scope that a subscription does not need leaves it alone', async () => {
  const app = await createApp(server);
  const { subscription } = await create(app, { scope: null });
  const narrow = sql`update grants set scopes = array_remove(scopes, 'read:posts') where id = ${app.grantId}`;
  await narrow.execute(db);
  assert.equal((await ending(subscription.id))?.state, 'active');
});

test('agents 33: a live subscription is renewed; one that has expired is not, and is made anew', async () => {
  const app = await createApp(server);
  const { subscription } = await create(app);
  const until = await renewAgentSubscription(db, subscription.id, 2 * hourMs);
  assert.ok(until !== undefined && until > subscription.expiresAt);
  assert.equal(until.getMilliseconds(), 0);
  await expire(subscription.id);
  assert.equal(await renewAgentSubscription(db, subscription.id, hourMs), undefined);
  const again = await create(app);
  assert.equal(again.isNew, true);
  assert.notEqual(again.subscription.id, subscription.id);
  assert.equal((await ending(subscription.id))?.end_reason, 'expired');
});

test('a withdrawn grant gets no subscription, however the two are interleaved', async () => {
  for (let round = 0; round < 5; round += 1) {
    const app = await createApp(server);
    const creating = addAgentSubscription(db, app);
    await withdrawGrant(db, app.grantId, 'user');
    const made = await creating;
    const state = made && (await ending(made.subscription.id))?.state;
    assert.ok(made === undefined || state === 'ended');
  }
});

test('a sweep and a renewal at the same time never end a renewed subscription', async () => {
  const app = await createApp(server);
  const { subscription } = await create(app);
  const { id } = subscription;
  for (let round = 0; round < 10; round += 1) {
    await sql`
      update agent_subscriptions set expires_at = clock_timestamp() + interval '3 milliseconds'
      where id = ${id}`.execute(db);
    const sweeping = endExpiredAgents(db);
    const [renewed] = await Promise.all([
      renewAgentSubscription(db, id, hourMs),
      sweeping,
      endExpiredAgents(db),
    ]);
    const state = (await ending(id))?.state;
    assert.equal(state, renewed === undefined ? state : 'active');
    if (state === 'ended') break;
  }
});

test('a withdrawal beside a new subscription in place of an expired one is no deadlock', async (t) => {
  const app = await createApp(server);
  const { subscription } = await create(app);
  await expire(subscription.id);
  const database = new pg.Client({ connectionString: server.databaseUrl });
  await database.connect();
  t.after(() => database.end());
  await database.query('begin');
  await database.query('select from grants where id = $1 for update', [app.grantId]);
  const creating = addAgentSubscription(db, app);
  await until(
    async () =>
      (
        await sql`select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`.execute(
          db,
        )
      ).rows.length,
    (waiting) => waiting > 0,
  );
  // Its trigger ends the subscription.
  await database.query('update grants set withdrawn_at = now() where id = $1', [app.grantId]);
  await database.query('commit');
  assert.equal(await creating, undefined);
});
