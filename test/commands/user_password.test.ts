/** `nuncio user password`: what someone with the old password may have set up does not survive a reset. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { changePassword } from '../../src/accounts/account.ts';
import { createAccountLink } from '../../src/accounts/account_link.ts';
import { userPassword } from '../../src/commands/user_password.ts';
import { newId } from '../../src/crypto/ids.ts';
import { endSessions } from '../../src/oauth/storage/end_sessions.ts';
import { disableOfUser } from '../../src/webhooks/subscriptions/subscription_state.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, type TestAccount } from '../support/clients/oauth.ts';
import { createConsoleUser, signInToConsole } from '../support/console/console_user.ts';
import { startFakeProvider } from '../support/upstream/fake_provider.ts';
import { declare, signInAt, startServerWithProviders } from '../support/upstream/upstream_sign_in.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  publish,
  pushBody,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const provider = await startFakeProvider({ after });
const server = await startServerWithProviders({ after }, [declare('one', provider, { trustEmail: true })]);
const { db } = server;
const accountUrl = `${server.baseUrl}/account`;
const password = 'another password';

async function reset(account: TestAccount, values: Record<string, boolean> = {}): Promise<string[]> {
  const lines: string[] = [];
  const config = { ...server.config, databaseUrl: server.databaseUrl };
  await userPassword.run(
    { values: { password, ...values }, positionals: [account.email] },
    { config, print: (line) => lines.push(line), printError: () => {} },
  );
  return lines;
}

/** An account to which the provider's user with the same verified address is connected. */
async function createConnected(): Promise<{ account: TestAccount; signIn: () => Promise<boolean> }> {
  const account = await createTestAccount(server);
  await sql`update accounts set email_verified = true where id = ${account.id}`.execute(db);
  const claims = { sub: newId(), email: account.email, email_verified: true };
  const signIn = async () => {
    const browser = new TestBrowser(server.baseUrl);
    const page = await signInAt(browser, await browser.open(accountUrl), 'one', provider, claims);
    return /Sign out/.test(page.text);
  };
  assert.ok(await signIn());
  return { account, signIn };
}

test('a reset disconnects identities and disables the user’s own subscriptions, and lists them and the apps', async (t) => {
  const { account, signIn } = await createConnected();
  const user = await createConsoleUser(server, { account });
  const subscriber = await startSubscriber(t);
  const own = await subscribe(user, { url: subscriber.url, kinds: ['push'] });
  const app = await createApp(server, { account });
  const ofApp = await subscribe(app, { url: subscriber.url, kinds: ['push'] });

  const [line, ...lines] = await reset(account);
  assert.match(String(line), /^changed the password of .* and ended all their sessions$/);
  const { rows } = await sql<{ name: string }>`select name from clients where id = ${app.clientId}`.execute(
    db,
  );
  const name = rows[0]?.name;
  const listed = lines.map((each) => each.replace(/, since \d{4}-.*Z$/, ''));
  assert.deepEqual(listed, [
    `disconnected identity ${account.email} of ${provider.issuer}`,
    `disabled subscription ${own.id} to ${own.url}`,
    `connected app ${name} (${app.clientId})`,
  ]);
  assert.equal(await signIn(), false);
  await publish(await createPublisher(server), account, ['after']);
  await fannedOut(server);
  const received = await subscriber.waitFor(1);
  assert.deepEqual(
    received.map(({ body }) => JSON.parse(body)),
    [pushBody('after')],
  );
  const { body: current } = await app.request('GET', `/subscriptions/${ofApp.id}`);
  assert.equal(current.state, 'active');
  const again = await createConsoleUser(server, { account });
  const { body: stopped } = await again.request('GET', `/subscriptions/${own.id}`);
  assert.deepEqual([stopped.state, stopped.disabled_reason], ['disabled', 'password_reset']);
  const { body: log } = await again.request('GET', `/subscriptions/${own.id}/deliveries`);
  assert.deepEqual(
    log.items.map(({ state }: { state: string }) => state),
    ['held'],
  );
  // The user decides.
  const enabled = await again.request('PATCH', `/subscriptions/${own.id}`, { json: { state: 'active' } });
  assert.equal(enabled.body.state, 'active');
});

test('a reset keeps identities and subscriptions that the operator confirms, as JSON too', async () => {
  const { account, signIn } = await createConnected();
  const user = await createConsoleUser(server, { account });
  const own = await subscribe(user, { url: 'https://example.com/', kinds: ['push'] });
  const flags = { 'keep-identities': true, 'keep-subscriptions': true, json: true };
  const [line, ...others] = await reset(account, flags);
  assert.deepEqual(others, []);
  const { id, email, identities, subscriptions, apps } = JSON.parse(String(line));
  assert.deepEqual([id, email, apps], [account.id, account.email, []]);
  assert.deepEqual(
    identities.map((each: Record<string, unknown>) => [each.provider, each.label, each.disconnected]),
    [['one', account.email, false]],
  );
  assert.deepEqual(
    subscriptions.map((each: Record<string, unknown>) => [each.id, each.url, each.state]),
    [[own.id, 'https://example.com/', 'active']],
  );
  assert.equal(await signIn(), true);
});

test('a reset ends account links, pending sign-ins and every token of the console', async () => {
  const account = await createTestAccount(server, { isAdmin: true });
  const { tokens } = await signInToConsole(server, account, { scope: 'openid admin' });
  const request = requester(server, String(tokens.access_token));
  assert.equal((await request('GET', '/admin/accounts')).status, 200);
  // Administrators have no account links.
  const user = await createTestAccount(server);
  const link = { accountId: user.id, clientId: 'machine', returnTo: null };
  const [used, unused] = [await createAccountLink(db, link), await createAccountLink(db, link)];
  const linked = new TestBrowser(server.baseUrl);
  assert.match((await linked.open(`${accountUrl}/link?code=${used.secret}`)).text, /Leave account/);
  await reset(account);
  await reset(user);
  assert.doesNotMatch((await linked.open(accountUrl)).text, /Leave account/);
  const late = new TestBrowser(server.baseUrl);
  assert.equal((await late.open(`${accountUrl}/link?code=${unused.secret}`)).response.status, 400);
  await until(
    () => request('GET', '/admin/accounts'),
    ({ status }) => status === 401,
  );
});

/** Runs requests of the console while a reset is not committed yet. @returns their statuses after the commit */
async function duringReset(account: TestAccount, begin: () => Promise<{ status: number }>[]) {
  const begun = Promise.withResolvers<void>();
  const mayCommit = Promise.withResolvers<void>();
  const done = db.transaction().execute(async (tx) => {
    await changePassword(tx, account.id, password);
    await endSessions(tx, account.id);
    await disableOfUser(tx, account.id, true);
    begun.resolve();
    await mayCommit.promise;
  });
  await begun.promise;
  const sent = begin();
  await until(
    async () => {
      const { rows } = await sql`
        select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query ~ 'from grants'`.execute(
        db,
      );
      return rows.length;
    },
    (count) => count === sent.length,
  );
  mayCommit.resolve();
  await done;
  return (await Promise.all(sent)).map(({ status }) => status);
}

test('requests of the console that are in progress during a reset make, change and enable no subscription', async () => {
  const account = await createTestAccount(server);
  const user = await createConsoleUser(server, { account });
  const fields = { url: 'https://example.com/', kinds: ['push'] };
  const stopped = await subscribe(user, fields);
  await user.request('PATCH', `/subscriptions/${stopped.id}`, { json: { state: 'disabled' } });
  const active = await subscribe(user, fields);
  const moved = { url: 'https://attacker.example/' };
  const statuses = await duringReset(account, () => [
    user.request('POST', '/subscriptions', { json: fields }),
    user.request('PATCH', `/subscriptions/${active.id}`, { json: moved }),
    user.request('PATCH', `/subscriptions/${stopped.id}`, { json: { state: 'active' } }),
  ]);
  assert.deepEqual(statuses, [409, 409, 409]);
  const { rows } = await sql<{ id: string; state: string; url: string }>`
    select id, state, url from subscriptions where account_id = ${account.id} order by id`.execute(db);
  assert.deepEqual(
    rows,
    [stopped, active].map(({ id }) => ({ id, state: 'disabled', url: fields.url })),
  );
});
