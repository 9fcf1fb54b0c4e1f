/** Upstream providers on the account page: sign-in, connecting and disconnecting identities. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { changePassword, disableAccount } from '../../src/accounts/account.ts';
import { createAccountLink } from '../../src/accounts/account_link.ts';
import { readAuditLog } from '../../src/audit/audit_log.ts';
import { newId } from '../../src/crypto/ids.ts';
import { endSessions } from '../../src/oauth/storage/end_sessions.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, type TestAccount } from '../support/clients/oauth.ts';
import { startFakeProvider } from '../support/upstream/fake_provider.ts';
import {
  callbackOf,
  declare,
  pressButton,
  signInAt,
  startServerWithProviders,
} from '../support/upstream/upstream_sign_in.ts';
import { until } from '../support/webhooks/apps.ts';

const one = await startFakeProvider({ after });
const two = await startFakeProvider({ after });
const server = await startServerWithProviders({ after }, [
  declare('one', one, { trustEmail: true }),
  declare('two', two),
]);
const { db } = server;
const accountUrl = `${server.baseUrl}/account`;

async function signedIn(account: TestAccount, browser = new TestBrowser(server.baseUrl)): Promise<Page> {
  const login = await browser.open(accountUrl);
  const page = await browser.submit(login, { email: account.email, password: account.password }, 1);
  assert.match(page.text, /Sign out/);
  return page;
}

const ownersOf = async (subject: string) =>
  (
    await sql<{ account_id: string }>`
      select account_id from upstream_identities where subject = ${subject}`.execute(db)
  ).rows.map((row) => row.account_id);

/** Submits the form whose action has the given suffix. */
function press(
  browser: TestBrowser,
  page: Page,
  action: string,
  values: Record<string, string> = {},
): Promise<Page> {
  const index = formsOf(page.text).findIndex((form) => form.action.endsWith(action));
  assert.notEqual(index, -1, page.text);
  return browser.submit(page, values, index);
}

test('a user signs in to the account page with a provider and signs out', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const sub = newId();
  const email = `${sub}@example.com`;
  const login = await browser.open(accountUrl);
  const page = await signInAt(browser, login, 'one', one, { sub, email, email_verified: true, name: 'Ann' });
  assert.equal(page.url, accountUrl);
  assert.match(page.text, /<h1>Ann<\/h1>/);
  assert.match(page.text, new RegExp(email));
  const out = await browser.open(`${server.baseUrl}/oauth/logout`);
  await browser.submit(out, { logout: 'yes' });
  assert.match((await browser.open(accountUrl)).text, /Continue with Provider one/);
});

test('a user signs in with a provider after connecting it with the password', async () => {
  const account = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  const sub = newId();
  const page = await signedIn(account, browser);
  let asked = await signInAt(browser, page, 'two', two, { sub, email: '<b>me</b>@two.example' });
  assert.match(asked.text, /Connect Provider two\?/);
  assert.match(asked.text, /&lt;b&gt;me/);
  assert.match(asked.text, new RegExp(account.email));
  assert.deepEqual(await ownersOf(sub), [], 'not before the user has confirmed it');
  asked = await browser.submit(asked, { action: 'connect', password: 'wrong password' });
  assert.equal(asked.response.status, 422);
  assert.deepEqual(await ownersOf(sub), []);
  const done = await browser.submit(asked, { action: 'connect', password: account.password });
  assert.equal(done.url, accountUrl);
  assert.match(done.text, /Disconnect Provider two/);
  assert.deepEqual(await ownersOf(sub), [account.id]);

  const other = new TestBrowser(server.baseUrl);
  const again = await signInAt(other, await other.open(accountUrl), 'two', two, { sub });
  assert.match(again.text, new RegExp(account.email));

  // The identity can be disconnected, because the password remains.
  const after = await press(other, again, '/account/disconnect');
  assert.doesNotMatch(after.text, /Disconnect Provider two/);
  assert.deepEqual(await ownersOf(sub), []);
  const kinds = (await readAuditLog(db, { account: account.id, limit: 20 })).map(({ kind }) => kind);
  assert.deepEqual(
    kinds.filter((kind) => kind.startsWith('identity.')),
    ['identity.connected', 'identity.disconnected'],
  );
});

test('the last way to sign in cannot be disconnected, also not by concurrent requests', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const sub = newId();
  let page = await signInAt(browser, await browser.open(accountUrl), 'one', one, {
    sub,
    email: `${sub}@example.com`,
    email_verified: true,
  });
  const refused = await press(browser, page, '/account/disconnect');
  assert.equal(refused.response.status, 409);
  assert.match(refused.text, /the only way to sign in/);
  // An account without a password connects a second provider after a confirmation.
  const second = newId();
  page = await browser.open(accountUrl);
  const asked = await signInAt(browser, page, 'two', two, { sub: second });
  assert.doesNotMatch(asked.text, /type="password"/);
  page = await browser.submit(asked, { action: 'connect' });
  assert.deepEqual(await ownersOf(second), await ownersOf(sub));
  const forms = formsOf(page.text).filter(({ action }) => action === '/account/disconnect');
  assert.equal(forms.length, 2);
  const answers = await Promise.all(
    forms.map(({ fields }) =>
      browser.request(`${accountUrl}/disconnect`, { method: 'POST', body: new URLSearchParams(fields) }),
    ),
  );
  assert.deepEqual(answers.map(({ status }) => status).sort(), [303, 409]);
  // An identity of a provider that is no longer configured does not count.
  const [left] = [...(await ownersOf(sub)), ...(await ownersOf(second))];
  await sql`
    insert into upstream_identities (issuer, subject, account_id, provider, label)
    values ('https://gone.example', ${newId()}, ${left}, 'gone', 'old')`.execute(db);
  page = await browser.open(accountUrl);
  const own = formsOf(page.text).find(({ fields }) => fields.issuer?.startsWith('http://127'));
  const last = await browser.request(`${accountUrl}/disconnect`, {
    method: 'POST',
    body: new URLSearchParams(own?.fields),
  });
  assert.equal(last.status, 409);
});

test('a disconnected provider does not connect itself again by the address, and the user can connect it', async () => {
  const account = await createTestAccount(server);
  await sql`update accounts set email_verified = true where id = ${account.id}`.execute(db);
  const sub = newId();
  const claims = { sub, email: account.email, email_verified: true };
  const first = new TestBrowser(server.baseUrl);
  const page = await signInAt(first, await first.open(accountUrl), 'one', one, claims);
  assert.deepEqual(await ownersOf(sub), [account.id]);
  await press(first, page, '/account/disconnect');
  assert.deepEqual(await ownersOf(sub), []);
  // The same user of the provider, and another one with the same address.
  for (const each of [claims, { ...claims, sub: newId() }]) {
    const browser = new TestBrowser(server.baseUrl);
    const asked = await signInAt(browser, await browser.open(accountUrl), 'one', one, each);
    assert.match(asked.text, /There is an account with the address/);
    assert.deepEqual(await ownersOf(each.sub), []);
    assert.doesNotMatch((await browser.open(accountUrl)).text, /Sign out/);
  }
  const asked = await signInAt(first, await first.open(accountUrl), 'one', one, claims);
  await first.submit(asked, { action: 'connect', password: account.password });
  assert.deepEqual(await ownersOf(sub), [account.id]);
  const later = new TestBrowser(server.baseUrl);
  assert.match((await signInAt(later, await later.open(accountUrl), 'one', one, claims)).text, /Sign out/);
});

test('an identity is not connected by an old password when it is reset meanwhile', async () => {
  const account = await createTestAccount(server);
  const sub = newId();
  const browser = new TestBrowser(server.baseUrl);
  const asked = await signInAt(browser, await browser.open(accountUrl), 'two', two, { sub });
  const begun = Promise.withResolvers<void>();
  const mayCommit = Promise.withResolvers<void>();
  const reset = db.transaction().execute(async (tx) => {
    await changePassword(tx, account.id, 'another password');
    await endSessions(tx, account.id);
    begun.resolve();
    await mayCommit.promise;
  });
  await begun.promise;
  const { email, password } = account;
  const sent = browser.submit(asked, { action: 'connect', email, password });
  let isAnswered = false;
  void sent.finally(() => {
    isAnswered = true;
  });
  await until(
    async () => {
      const { rows } = await sql`
        select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`.execute(
        db,
      );
      return isAnswered || rows.length > 0;
    },
    (is) => is,
  );
  mayCommit.resolve();
  await reset;
  assert.equal((await sent).response.status, 400);
  assert.deepEqual(await ownersOf(sub), []);
});

test('an identity cannot be connected or disconnected by another account', async () => {
  const [ann, bob] = [await createTestAccount(server), await createTestAccount(server)];
  const sub = newId();
  const connect = async (account: TestAccount) => {
    const browser = new TestBrowser(server.baseUrl);
    const asked = await signInAt(browser, await signedIn(account, browser), 'two', two, { sub });
    return { browser, page: await browser.submit(asked, { action: 'connect', password: account.password }) };
  };
  await connect(ann);
  const { browser, page } = await connect(bob);
  assert.equal(page.response.status, 409);
  assert.match(page.text, /Another account here is connected/);
  assert.deepEqual(await ownersOf(sub), [ann.id]);
  const own = await browser.open(accountUrl);
  const token = formsOf(own.text)[0]?.fields.form_token ?? '';
  const body = new URLSearchParams({ form_token: token, issuer: two.issuer, subject: sub });
  await browser.request(`${accountUrl}/disconnect`, { method: 'POST', body });
  assert.deepEqual(await ownersOf(sub), [ann.id]);
});

test('an identity is connected once when two accounts connect it concurrently', async () => {
  const sub = newId();
  const accounts = [await createTestAccount(server), await createTestAccount(server)];
  const waiting = [];
  for (const account of accounts) {
    const browser = new TestBrowser(server.baseUrl);
    const asked = await signInAt(browser, await signedIn(account, browser), 'two', two, { sub });
    waiting.push({ browser, asked, account });
  }
  const pages = await Promise.all(
    waiting.map(({ browser, asked, account }) =>
      browser.submit(asked, { action: 'connect', password: account.password }),
    ),
  );
  assert.deepEqual(pages.map(({ response }) => response.status).sort(), [200, 409]);
  assert.equal((await ownersOf(sub)).length, 1);
});

test('connecting fails when another account is signed in at the callback', async () => {
  const [ann, mallory] = [await createTestAccount(server), await createTestAccount(server)];
  const browser = new TestBrowser(server.baseUrl);
  const sent = await pressButton(browser, await signedIn(ann, browser), 'two');
  const sub = newId();
  two.idToken = () => two.sign({ sub, nonce: sent.leftTo?.searchParams.get('nonce') });
  const out = await browser.open(`${server.baseUrl}/oauth/logout`);
  await browser.submit(out, { logout: 'yes' });
  await signedIn(mallory, browser);
  const page = await browser.open(callbackOf(sent.leftTo as URL, { iss: two.issuer }));
  assert.equal(page.response.status, 400);
  assert.match(page.text, /This sign-in cannot be finished/);
  assert.deepEqual(await ownersOf(sub), []);
});

test('connecting requires the form token, a login session and an active account', async () => {
  const account = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  const page = await signedIn(account, browser);
  const send = (path: string, fields: Record<string, string>) =>
    browser.request(`${accountUrl}/${path}`, { method: 'POST', body: new URLSearchParams(fields) });
  assert.equal((await send('connect', { provider: 'two' })).status, 403);
  assert.equal((await send('disconnect', { issuer: two.issuer, subject: 'x' })).status, 403);
  const stranger = await new TestBrowser(server.baseUrl).request(`${accountUrl}/connect`, {
    method: 'POST',
    body: new URLSearchParams({ provider: 'two' }),
  });
  assert.equal(stranger.headers.get('location'), '/account');
  const sub = newId();
  const asked = await signInAt(browser, page, 'two', two, { sub });
  await disableAccount(db, account.id);
  await db.transaction().execute((tx) => endSessions(tx, account.id));
  const late = await browser.submit(asked, { action: 'connect', password: account.password });
  assert.equal(late.response.status, 400);
  assert.deepEqual(await ownersOf(sub), []);
});

test('the session of an account link cannot list, connect or disconnect identities', async () => {
  const account = await createTestAccount(server);
  const { secret } = await createAccountLink(db, {
    accountId: account.id,
    clientId: 'machine',
    returnTo: null,
  });
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(`${accountUrl}/link?code=${secret}`);
  assert.match(page.text, /Leave account/);
  assert.doesNotMatch(page.text, /Provider/);
  const token = formsOf(page.text)[0]?.fields.form_token ?? '';
  for (const path of ['connect', 'disconnect']) {
    const body = new URLSearchParams({
      form_token: token,
      provider: 'two',
      issuer: two.issuer,
      subject: 'x',
    });
    const answer = await browser.request(`${accountUrl}/${path}`, { method: 'POST', body });
    assert.equal(answer.headers.get('location'), '/account');
  }
});

test('connecting fails when the account has 20 identities', async () => {
  const account = await createTestAccount(server);
  await sql`
    insert into upstream_identities (issuer, subject, account_id, provider, label)
    select 'https://many.example', n::text, ${account.id}, 'two', 'many' from generate_series(1, 20) as n`.execute(
    db,
  );
  const browser = new TestBrowser(server.baseUrl);
  const asked = await signInAt(browser, await signedIn(account, browser), 'two', two, { sub: newId() });
  const page = await browser.submit(asked, { action: 'connect', password: account.password });
  assert.equal(page.response.status, 409);
  assert.match(page.text, /<h1>Not connected<\/h1>.*Too many sign-ins are connected/s);
});
