/** Operator commands beside a running server: `nuncio trigger`, `nuncio audit`, `nuncio user …`. */

import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { AccountError } from '../../src/accounts/account.ts';
import { audit } from '../../src/commands/audit.ts';
import { clientDelete } from '../../src/commands/client_delete.ts';
import { type Command, CommandError, UsageError } from '../../src/commands/command.ts';
import { readPassword } from '../../src/commands/password_option.ts';
import { trigger } from '../../src/commands/trigger.ts';
import { userCreate } from '../../src/commands/user_create.ts';
import { userDisable } from '../../src/commands/user_disable.ts';
import { userEnable } from '../../src/commands/user_enable.ts';
import { userPassword } from '../../src/commands/user_password.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, pushBody, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });

/** Runs a command as the command line does. */
async function run(
  command: Command,
  values: Record<string, string | boolean | string[]>,
  ...positionals: string[]
) {
  const lines: string[] = [];
  const config = { ...server.config, databaseUrl: server.databaseUrl };
  await command.run(
    { values, positionals },
    { config, print: (line) => lines.push(line), printError: () => {} },
  );
  return lines;
}

test('trigger sends the kind’s example or the given body to the account’s subscriber', async (t) => {
  const account = await createTestAccount(server);
  const app = await createApp(server, { account });
  const subscriber = await startSubscriber(t);
  await subscribe(app, { url: subscriber.url, kinds: ['push', 'invoice.paid'] });
  const [line] = await run(trigger, { account: account.email }, 'invoice.paid');
  assert.match(String(line), /^published invoice\.paid as [0-9a-f-]{36}$/);
  const body = JSON.stringify(pushBody('mine'));
  const [json] = await run(trigger, { account: account.id, body, json: true }, 'push');
  assert.match(JSON.parse(String(json)).id, /^[0-9a-f-]{36}$/);
  const received = await subscriber.waitFor(2);
  const bodies = new Map(received.map((one) => [one.headers['nuncio-event'], JSON.parse(one.body)]));
  const { body: catalogue } = await app.request('GET', '/event-kinds');
  const kind = catalogue.items.find(({ name }: { name: string }) => name === 'invoice.paid');
  assert.deepEqual(bodies.get('invoice.paid'), kind.example);
  assert.deepEqual(bodies.get('push'), pushBody('mine'));
});

test('trigger sends the example with the values of --set, typed by the schema', async (t) => {
  const account = await createTestAccount(server);
  const app = await createApp(server, { account });
  const subscriber = await startSubscriber(t);
  await subscribe(app, { url: subscriber.url, kinds: ['push', 'invoice.paid'] });
  const set = ['invoice.amount=12', 'invoice.id=12', '/invoice/currency=USD', 'invoice.id=13'];
  const invoice = { id: '1', amount: 1, currency: 'EUR', customer: { name: 'Ann' } };
  const body = JSON.stringify({ invoice });
  await run(trigger, { account: account.id, body, set }, 'invoice.paid');
  const commits = ['commits.0.message=Fix = it', 'commits.1={"id":"2","message":"Two"}', 'commits.1.id=3'];
  await run(trigger, { account: account.id, set: commits }, 'push');
  const received = await subscriber.waitFor(2);
  const bodies = new Map(received.map((one) => [one.headers['nuncio-event'], JSON.parse(one.body)]));
  assert.deepEqual(bodies.get('invoice.paid'), {
    invoice: { ...invoice, amount: 12, id: '13', currency: 'USD' },
  });
  assert.deepEqual(
    bodies.get('push').commits.map(({ id, message }: { id: string; message: string }) => [id, message]),
    [
      ['9c1185a5c5e9fc54612808977ee8f548b2258d31', 'Fix = it'],
      ['3', 'Two'],
    ],
  );
});

test('trigger refuses a --set that the schema does not allow, and publishes nothing', async () => {
  const account = await createTestAccount(server);
  const refused: [set: string, kind: string, message: RegExp][] = [
    ['invoice.amount', 'invoice.paid', /must be path=value/],
    ['=1', 'invoice.paid', /must be path=value/],
    ['invoice..id=1', 'invoice.paid', /must be path=value/],
    ['invoice.amout=1', 'invoice.paid', /invoice\.amout: the body of invoice\.paid has no such value/],
    ['__proto__.polluted=1', 'invoice.paid', /no such value/],
    ['constructor.prototype.polluted=1', 'push', /no such value/],
    ['invoice.amount=many', 'invoice.paid', /invoice\.amount: the value must be number/],
    ['invoice=1', 'invoice.paid', /the value must be a JSON object/],
    ['invoice.amount=1.5', 'invoice.paid', /the body at \/invoice\/amount must be integer/],
    ['invoice.currency=eur', 'invoice.paid', /the body at \/invoice\/currency must match pattern/],
    ['commits.2.message=x', 'push', /"2" must be an index from 0 to 1/],
    ['commits.1.message=x', 'push', /the body at \/commits\/1 must have required property 'id'/],
  ];
  for (const [set, kind, message] of refused) {
    await assert.rejects(
      run(trigger, { account: account.id, set: [set] }, kind),
      (error) => error instanceof UsageError && message.test(error.message),
      set,
    );
  }
  assert.equal('polluted' in {}, false);
  const { rows } = await sql`select from events where account_id = ${account.id}`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('trigger refuses an unknown kind, an invalid body and an unknown account', async () => {
  const account = await createTestAccount(server);
  const fails = (values: Record<string, string>, kind: string, type: new () => Error, message: RegExp) =>
    assert.rejects(
      run(trigger, values, kind),
      (error) => error instanceof type && message.test(error.message),
    );
  await fails({ account: account.id }, 'nothing', UsageError, /it must be one of .*push/);
  await fails({ account: account.id }, 'ping', UsageError, /it must be one of .*push/);
  await fails({ account: account.id, body: '{' }, 'push', UsageError, /must be JSON/);
  await fails({ account: account.id, body: '{}' }, 'invoice.paid', UsageError, /invoice/);
  await fails(
    { account: 'nobody@example.com' },
    'push',
    CommandError,
    /account "nobody@example.com" not found/,
  );
  // This database has no demo user of development mode.
  await fails({}, 'push', UsageError, /--account is required, because there is no user demo@example\.com/);
  const { rows } = await sql`select from events where account_id = ${account.id}`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('audit shows who withdrew what and when, by id or address, with no empty column', async () => {
  const account = await createTestAccount(server, { email: 'ada@example.com' });
  const client = await createTestClient(server);
  const { grantId } = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  await withdrawGrant(server.db, String(grantId), 'user');
  for (const wanted of ['ada@example.com', 'ADA@example.com ', account.id]) {
    const lines = await run(audit, { account: wanted, kind: 'grant.withdrawn' });
    assert.equal(lines.length, 1, wanted);
    const [at, kind, app, who, details] = String(lines[0]).split('  ');
    assert.match(String(at), /^\d{4}-\d\d-\d\dT/);
    assert.deepEqual(
      [kind, app, who, details],
      ['grant.withdrawn', client.id, account.email, '{"reason":"user"}'],
    );
  }
  const [json] = await run(audit, { account: account.id, kind: 'grant.withdrawn', json: true });
  const entry = JSON.parse(String(json));
  assert.deepEqual([entry.account, entry.email, entry.grant], [account.id, account.email, grantId]);
  const [key] = await run(audit, { kind: 'key.created', limit: '1' });
  assert.deepEqual(String(key).split('  ').slice(2, 4), ['-', '-']);
  await assert.rejects(run(audit, { account: 'nobody' }), UsageError);
  assert.deepEqual(await run(audit, { account: 'nobody@example.com' }), []);
});

async function signsIn(email: string, password: string): Promise<TestBrowser | undefined> {
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.submit(await browser.open(`${server.baseUrl}/account`), { email, password });
  return page.text.includes('Connected apps') ? browser : undefined;
}

async function isSignedIn(browser: TestBrowser | undefined): Promise<boolean> {
  assert.ok(browser !== undefined);
  return (await browser.open(`${server.baseUrl}/account`)).text.includes('Connected apps');
}

test('user password sets the password and ends every session, and apps stay', async () => {
  const account = await createTestAccount(server);
  const app = await createApp(server, { account });
  const browser = await signsIn(account.email, account.password);
  assert.ok(await isSignedIn(browser));
  const lines = await run(userPassword, { password: 'another password' }, account.email);
  assert.match(String(lines[0]), new RegExp(`changed the password of ${account.email}`));
  assert.equal(await isSignedIn(browser), false);
  assert.equal(await signsIn(account.email, account.password), undefined);
  assert.ok(await isSignedIn(await signsIn(account.email, 'another password')));
  assert.equal((await app.request('GET', '/api')).status, 200);
  await assert.rejects(run(userPassword, { password: 'short' }, account.id), AccountError);
  await assert.rejects(run(userPassword, { password: 'another password' }, 'nobody'), CommandError);
  assert.ok(await isSignedIn(await signsIn(account.email, 'another password')));
});

test('user disable ends sessions, apps and sign-in, and user enable restores only sign-in', async () => {
  const account = await createTestAccount(server);
  const app = await createApp(server, { account });
  const browser = await signsIn(account.email, account.password);
  await run(userDisable, {}, account.id);
  assert.equal(await isSignedIn(browser), false);
  assert.equal(await signsIn(account.email, account.password), undefined);
  await until(
    () => app.request('GET', '/api'),
    ({ status }) => status === 401,
  );
  await assert.rejects(run(userDisable, {}, account.email), /already disabled/);
  await run(userEnable, {}, account.email);
  assert.equal(await isSignedIn(browser), false);
  assert.ok(await isSignedIn(await signsIn(account.email, account.password)));
  assert.equal((await app.request('GET', '/api')).status, 401);
  await assert.rejects(run(userEnable, {}, account.email), /not disabled/);
  const entries = await run(audit, { account: account.id });
  const kinds = entries.map((line) => line.split('  ')[1]);
  assert.deepEqual(
    kinds.filter((kind) => !kind?.startsWith('token.')),
    ['account.created', 'grant.created', 'grant.withdrawn', 'account.disabled', 'account.enabled'],
  );
});

test('a password of - is read from the first line of standard input', async () => {
  const input = Readable.from(['correct horse\nbattery']);
  assert.equal(await readPassword({ password: '-' }, input), 'correct horse');
  assert.equal(await readPassword({ password: 'staple' }), 'staple');
  await assert.rejects(readPassword({ password: '-' }, Readable.from([])), UsageError);
  await assert.rejects(readPassword({}), UsageError);
});

test('client delete refuses a suspended app with a metadata document, which would return', async () => {
  const id = 'https://apps.example/client.json';
  await createTestClient(server, { id, origin: 'document' });
  await sql`update clients set suspended_at = now() where id = ${id}`.execute(server.db);
  await assert.rejects(run(clientDelete, {}, id), CommandError);
  await sql`update clients set suspended_at = null where id = ${id}`.execute(server.db);
  await run(clientDelete, {}, id);
  const { rows } = await sql`select from clients where id = ${id}`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('user create makes an application’s user an administrator, known or not', async () => {
  const [made] = await run(userCreate, { 'external-id': 'boss', json: true });
  const [again] = await run(userCreate, { 'external-id': 'boss', admin: true, json: true });
  assert.equal(JSON.parse(String(made)).id, JSON.parse(String(again)).id);
  const { rows } = await sql`
    select is_admin, password_hash from accounts where external_id = 'boss'`.execute(server.db);
  assert.deepEqual(rows, [{ is_admin: true, password_hash: null }]);
  for (const values of [{ 'external-id': 'a\n' }, { 'external-id': 'a', email: 'a@example.com' }]) {
    await assert.rejects(run(userCreate, values), UsageError);
  }
});

test('user create: an address that the operator knows to be verified, and an account without a password', async () => {
  const email = 'single@example.com';
  await run(userCreate, { email, 'email-verified': true, 'no-password': true });
  const { rows } = await sql`
    select email_verified, password_hash from accounts where email = ${email}`.execute(server.db);
  assert.deepEqual(rows, [{ email_verified: true, password_hash: null }]);
  await run(userCreate, { email: 'plain@example.com', password: 'correct horse' });
  const { rows: plain } = await sql`
    select email_verified from accounts where email = 'plain@example.com'`.execute(server.db);
  assert.deepEqual(plain, [{ email_verified: null }]);
  for (const values of [
    { email: 'a@example.com', 'no-password': true },
    { email: 'a@example.com', 'email-verified': true, 'no-password': true, password: 'correct horse' },
    { 'external-id': 'a', 'email-verified': true },
  ]) {
    await assert.rejects(run(userCreate, values), UsageError);
  }
});
