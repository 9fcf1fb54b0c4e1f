/** Notices by mail: who gets which, digests, and how people stop them. The SMTP server is a real one. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { disableAccount } from '../../src/accounts/account.ts';
import { rotateClientSecret } from '../../src/clients/client_secret.ts';
import { noticeKinds } from '../../src/notices/kinds.ts';
import { createUnsubscribeTokens } from '../../src/notices/unsubscribe.ts';
import { disableFailing, warnFailing } from '../../src/webhooks/subscriptions/failing.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, type TestAccount } from '../support/clients/oauth.ts';
import { type ConsoleUser, createConsoleUser } from '../support/console/console_user.ts';
import { type ReceivedMail, startSmtpServer } from '../support/mail/smtp_server.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';

const inbox = await startSmtpServer({ after });
const server = await startTestServer({ after }, { NUNCIO_SMTP_URL: inbox.url });
const { db, baseUrl } = server;
const administrator = await createConsoleUser(server, { isAdmin: true });
const tokens = createUnsubscribeTokens(testSecret);

/** Creates an app with subscriptions of its own. */
async function createOwnApp(user: ConsoleUser, name = 'Reader'): Promise<string> {
  const { status, body, text } = await user.request('POST', '/apps', {
    json: {
      client_name: name,
      redirect_uris: ['https://reader.example/callback'],
      grant_types: ['authorization_code', 'client_credentials'],
      scope: 'read:posts',
    },
  });
  assert.equal(status, 201, text);
  await sql`update clients set may_subscribe = true, verified_at = now() where id = ${body.client_id}`.execute(
    db,
  );
  return body.client_id;
}

async function subscribeApp(user: ConsoleUser, app: string, url: string): Promise<string> {
  const { status, body, text } = await user.request('POST', `/apps/${app}/subscriptions`, {
    json: { url, kinds: ['article.*'] },
  });
  assert.equal(status, 201, text);
  return body.id;
}

const subscribeUser = async (user: ConsoleUser, fields: Record<string, unknown> = {}): Promise<string> =>
  (
    await subscribe(user, {
      url: 'https://hooks.example.com/in?token=t0p-secret',
      kinds: ['article.published'],
      ...fields,
    })
  ).id;

async function addMember(app: string, role: 'owner' | 'developer' = 'developer'): Promise<TestAccount> {
  const account = await createTestAccount(server);
  await sql`
    insert into app_members (client_id, account_id, role) values (${app}, ${account.id}, ${role})`.execute(
    db,
  );
  return account;
}

async function laneOf(subscription: string): Promise<number> {
  const { rows } = await sql<{ lane: string }>`
    select lane from subscriptions where id = ${subscription}`.execute(db);
  return Number(rows[0]?.lane);
}

/** Makes subscriptions look as if all of their deliveries had failed for some days. */
async function fail(subscriptions: string[], days: number): Promise<void> {
  for (const subscription of subscriptions) {
    await sql`
      update lane_progress set failures = 40, failing_since = now() - ${days} * interval '1 day'
      where lane = ${await laneOf(subscription)}`.execute(db);
  }
  await warnFailing(db);
}

/** Lets the time pass in which notices are collected. */
const endCollecting = () =>
  sql`update notices set at = at - interval '2 minutes' where mail_id is null`.execute(db);
/** Lets the hour pass after the last mails. */
const endHour = () => sql`update mails set created_at = created_at - interval '61 minutes'`.execute(db);

async function mailsOf({ email }: TestAccount, count = 1): Promise<ReceivedMail[]> {
  await endCollecting();
  return inbox.waitFor(email, count);
}

/** Waits until all notices and mails of an account are dealt with. */
async function settle({ id }: TestAccount): Promise<void> {
  await endCollecting();
  await until(
    async () =>
      (
        await sql<{ count: number }>`
          select (select count(*) from notices where account_id = ${id} and mail_id is null)::int
            + (select count(*) from mails where account_id = ${id} and sent_at is null and ended_at is null)::int as count`.execute(
          db,
        )
      ).rows[0]?.count,
    (count) => count === 0,
  );
}

const textOf = ({ parsed }: ReceivedMail) => `${parsed.subject}\n${parsed.text}\n${parsed.html}`;
const sentTo = ({ email }: TestAccount) => inbox.mails.filter(({ to }) => to.includes(email));

test('a user is told when their subscription fails, is about to be disabled, is disabled', async () => {
  const user = await createConsoleUser(server);
  const id = await subscribeUser(user, { description: 'Orders <b>to</b> the shop' });
  await fail([id], 3);
  const [failing] = await mailsOf(user.account);
  assert(failing !== undefined);
  assert.equal(failing.parsed.subject, 'The webhook to hooks.example.com keeps failing');
  assert.match(textOf(failing), new RegExp(`/console/subscriptions/${id}`));
  assert.match(failing.parsed.text ?? '', /Will be disabled on: \w+ \d+, \d{4}, \d\d:\d\d UTC/);
  assert.match(String(failing.parsed.html), /Orders &lt;b&gt;to&lt;\/b&gt; the shop/);
  assert.doesNotMatch(textOf(failing), /t0p-secret/);

  await fail([id], 4.5);
  const [, disabling] = await mailsOf(user.account, 2);
  assert.equal(disabling?.parsed.subject, 'The webhook to hooks.example.com will be disabled soon');

  const lane = await laneOf(id);
  await sql`
    update lane_progress set failing_since = now() - interval '6 days' where lane = ${lane}`.execute(db);
  await sql`
    update failing_warnings w set disables_at = now(), failing_since = p.failing_since from lane_progress p
    where p.lane = w.lane and w.lane = ${lane}`.execute(db);
  assert.deepEqual(await disableFailing(db, [lane]), [lane]);
  const third = (await mailsOf(user.account, 3))[2];
  assert.equal(third?.parsed.subject, 'The webhook to hooks.example.com is disabled');
  assert.match(textOf(third as ReceivedMail), /deliveries failed for too long/);
});

test('a user is told when a failing subscription works again, once', async () => {
  const user = await createConsoleUser(server);
  const id = await subscribeUser(user);
  await fail([id], 3);
  await mailsOf(user.account);
  await sql`
    update lane_progress set failures = 0, failing_since = null where lane = ${await laneOf(id)}`.execute(db);
  await until(
    async () =>
      (
        await sql`select from notices where account_id = ${user.account.id} and kind = 'recovered'`.execute(
          db,
        )
      ).rows.length,
    (count) => count === 1,
  );
  const [, recovered] = await mailsOf(user.account, 2);
  assert.equal(recovered?.parsed.subject, 'The webhook to hooks.example.com works again');
  await settle(user.account);
  assert.equal(sentTo(user.account).length, 2);
});

test('a subscription that was disabled and enabled by its owner has not recovered, and gives no notice', async () => {
  const user = await createConsoleUser(server);
  const id = await subscribeUser(user);
  await fail([id], 3);
  await mailsOf(user.account);
  for (const state of ['disabled', 'active']) {
    const { status, text } = await user.request('PATCH', `/subscriptions/${id}`, { json: { state } });
    assert.equal(status, 200, text);
  }
  const other = await createConsoleUser(server);
  const otherId = await subscribeUser(other);
  await fail([otherId], 3);
  await sql`
    update lane_progress set failures = 0, failing_since = null where lane = ${await laneOf(otherId)}`.execute(
    db,
  );
  await until(
    async () =>
      (
        await sql`select from notices where kind = 'recovered' and account_id = ${other.account.id}`.execute(
          db,
        )
      ).rows.length,
    (count) => count === 1,
  );
  await settle(user.account);
  assert.equal(sentTo(user.account).length, 1);
});

test('a user is told when the secret of their subscription is rotated', async () => {
  const user = await createConsoleUser(server);
  const id = await subscribeUser(user);
  const { status, text } = await user.request('POST', `/subscriptions/${id}/rotate-secret`);
  assert.equal(status, 200, text);
  const [mail] = await mailsOf(user.account);
  assert.equal(mail?.parsed.subject, 'New secret for the webhook to hooks.example.com');
  assert.match(textOf(mail as ReceivedMail), /signing secret/);
});

test('all members are told about their app and its own subscriptions, and nobody else', async () => {
  const owner = await createConsoleUser(server);
  const app = await createOwnApp(owner, 'Reader');
  const developer = await addMember(app);
  const stranger = await createConsoleUser(server);
  const otherApp = await createOwnApp(stranger, 'Other');
  await subscribeApp(stranger, otherApp, 'https://other.example/in');
  const id = await subscribeApp(owner, app, 'https://reader.example/in');
  const disabled = await administrator.request('POST', `/admin/subscriptions/${id}/disable`);
  assert.equal(disabled.status, 200, disabled.text);
  await rotateClientSecret(db, app, 60);
  const suspended = await administrator.request('POST', `/admin/apps/${app}/suspend`);
  assert.equal(suspended.status, 200, suspended.text);
  for (const account of [owner.account, developer]) {
    const subjects = (await mailsOf(account, 3)).map(({ parsed }) => parsed.subject).sort();
    assert.deepEqual(subjects, [
      'New secret for “Reader”',
      'The webhook to reader.example of “Reader” is disabled',
      'Your app “Reader” is suspended',
    ]);
  }
  assert.match(textOf(sentTo(owner.account)[0] as ReceivedMail), /Reader/);
  for (const account of [stranger.account, administrator.account]) await settle(account);
  assert.deepEqual(sentTo(stranger.account), []);
  assert.deepEqual(sentTo(administrator.account), []);
});

test('the secret that an app is created with, and what its owner disables, give no notice', async () => {
  const owner = await createConsoleUser(server);
  const app = await createOwnApp(owner);
  const id = await subscribeApp(owner, app, 'https://reader.example/in');
  const own = await subscribeUser(owner);
  for (const each of [id, own]) {
    const { status, text } = await owner.request('PATCH', `/subscriptions/${each}`, {
      json: { state: 'disabled' },
    });
    assert.equal(status, 200, text);
  }
  const { rows } = await sql`select from notices where account_id = ${owner.account.id}`.execute(db);
  assert.equal(rows.length, 0);
});

test('a subscription of a grant gives no notice, neither to the user nor to the members', async () => {
  const acting = await createApp(server);
  await sql`
    insert into app_members (client_id, account_id, role)
    values (${acting.clientId}, ${administrator.account.id}, 'owner')`.execute(db);
  const { id } = await subscribe(acting, { url: 'https://hooks.example.com/in' });
  await fail([id], 4.5);
  const { rows } = await sql`select from notices where subscription_id = ${id}`.execute(db);
  assert.equal(rows.length, 0);
});

test('many subscriptions come in one mail, and later ones in one an hour after it', async () => {
  const user = await createConsoleUser(server);
  const ids = [];
  for (let at = 0; at < 19; at += 1)
    ids.push(await subscribeUser(user, { url: `https://h${at}.example.com/` }));
  await fail(ids.slice(0, 3), 3);
  const [first] = await mailsOf(user.account);
  assert.equal(first?.parsed.subject, '3 subscriptions keep failing');
  for (const at of [0, 1, 2])
    assert.match(textOf(first as ReceivedMail), new RegExp(`h${at}\\.example\\.com`));
  await fail(ids.slice(3, 4), 3);
  await endCollecting();
  await fail(ids.slice(4, 5), 3);
  // Another kind does not wait for the hour.
  assert.equal((await user.request('POST', `/subscriptions/${ids[9]}/rotate-secret`)).status, 200);
  await mailsOf(user.account, 2);
  assert.equal(
    sentTo(user.account).filter(({ parsed }) => /keep failing/.test(parsed.subject ?? '')).length,
    1,
  );
  await endHour();
  const third = (await mailsOf(user.account, 3)).at(-1);
  assert.equal(third?.parsed.subject, '2 subscriptions keep failing');
});

test('a mail lists at most 20 subscriptions and counts the others', async () => {
  const owner = await createConsoleUser(server);
  // All notices at once, so that one mail collects them.
  const causes: [app: string, subscription: string | null][] = [];
  for (const name of ['One', 'Two']) {
    const app = await createOwnApp(owner, name);
    causes.push([app, null]);
    for (let at = 0; at < 12; at += 1) {
      causes.push([app, await subscribeApp(owner, app, `https://${name.toLowerCase()}-${at}.example/`)]);
    }
  }
  const [apps, subscriptions] = [causes.map(([app]) => app), causes.map(([, subscription]) => subscription)];
  await sql`
    insert into notices (account_id, kind, client_id, subscription_id)
    select ${owner.account.id}, 'secret_rotated', app, subscription
    from unnest(${apps}::text[], ${subscriptions}::uuid[]) as cause (app, subscription)`.execute(db);
  const [mail] = await mailsOf(owner.account);
  assert.equal(mail?.parsed.subject, '26 secrets were replaced');
  assert.equal(mail?.parsed.text?.match(/Replaced on:/g)?.length, 20);
  assert.match(mail?.parsed.text ?? '', /And 6 more/);
});

test('mails of others do not wait for an account that is being deleted', async () => {
  const [deleted, other] = [await createConsoleUser(server), await createConsoleUser(server)];
  for (const user of [deleted, other]) {
    await sql`
      insert into notices (account_id, kind, client_id)
      values (${user.account.id}, 'secret_rotated', ${await createOwnApp(user)})`.execute(db);
  }
  await db.transaction().execute(async (tx) => {
    await sql`select from accounts where id = ${deleted.account.id} for update`.execute(tx);
    assert.equal((await mailsOf(other.account)).length, 1);
  });
  assert.equal((await mailsOf(deleted.account)).length, 1);
});

test('a member who is removed, or an account that is disabled, before the mail is sent gets none', async () => {
  const owner = await createConsoleUser(server);
  const app = await createOwnApp(owner);
  const [removed, disabled, stays] = [await addMember(app), await addMember(app), await addMember(app)];
  inbox.refuse = (recipient) => (recipient === removed.email ? '450 later' : undefined);
  await rotateClientSecret(db, app, 60);
  await disableAccount(db, disabled.id);
  await mailsOf(stays);
  await until(
    async () => inbox.attempts.filter((recipient) => recipient === removed.email).length,
    (count) => count === 1,
  );
  // The mail is already written and waits for its next attempt.
  const path = `/apps/${app}/members/${removed.id}`;
  assert.equal((await owner.request('DELETE', path)).status, 204);
  inbox.refuse = () => undefined;
  await sql`update mails set due_at = now() where sent_at is null and ended_at is null`.execute(db);
  for (const account of [removed, disabled]) await settle(account);
  assert.deepEqual([sentTo(removed), sentTo(disabled)], [[], []]);
});

test('a member of two apps who leaves one gets the rest of the mail', async () => {
  const owner = await createConsoleUser(server);
  const [kept, left] = [await createOwnApp(owner, 'Kept'), await createOwnApp(owner, 'Left')];
  const member = await addMember(kept);
  await sql`
    insert into app_members (client_id, account_id, role) values (${left}, ${member.id}, 'developer')`.execute(
    db,
  );
  for (const app of [kept, left]) await rotateClientSecret(db, app, 60);
  assert.equal((await owner.request('DELETE', `/apps/${left}/members/${member.id}`)).status, 204);
  const [mail] = await mailsOf(member);
  assert.equal(mail?.parsed.subject, 'New secret for “Kept”');
  assert.doesNotMatch(textOf(mail as ReceivedMail), /Left/);
});

test('news that is no longer so is not sent: the subscription was deleted, or works again', async () => {
  const user = await createConsoleUser(server);
  const [deleted, mended] = [await subscribeUser(user), await subscribeUser(user)];
  await fail([deleted, mended], 3);
  assert.equal((await user.request('DELETE', `/subscriptions/${deleted}`)).status, 204);
  await sql`
    update lane_progress set failures = 0, failing_since = null where lane = ${await laneOf(mended)}`.execute(
    db,
  );
  await until(
    async () =>
      (
        await sql`select from notices where account_id = ${user.account.id} and kind = 'recovered'`.execute(
          db,
        )
      ).rows.length,
    (count) => count === 1,
  );
  await settle(user.account);
  assert.deepEqual(
    sentTo(user.account).map(({ parsed }) => parsed.subject),
    ['The webhook to hooks.example.com works again'],
  );
});

test('one click in the mail program stops the notices of that kind (RFC 8058)', async () => {
  const user = await createConsoleUser(server);
  const id = await subscribeUser(user);
  await user.request('POST', `/subscriptions/${id}/rotate-secret`);
  const [mail] = await mailsOf(user.account);
  const { raw } = mail as ReceivedMail;
  assert.match(raw, /^List-Unsubscribe-Post: List-Unsubscribe=One-Click\r$/m);
  const unfolded = raw.replaceAll(/\r\n[ \t]/g, ' ');
  const url = /^List-Unsubscribe: <(\S+)>\r$/m.exec(unfolded)?.[1] ?? '';
  assert.ok(url.startsWith(`${baseUrl}/account/unsubscribe?token=`), unfolded);
  assert.match(textOf(mail as ReceivedMail), /Stop these mails/);

  const choices = async () => (await user.request('GET', '/notice-settings')).body.kinds;
  for (const method of ['GET', 'HEAD']) assert.equal((await fetch(url, { method })).status, 200);
  assert.equal((await choices()).secret_rotated, true, 'programs that check links stop nothing');
  const form = new FormData();
  form.set('List-Unsubscribe', 'One-Click');
  for (const body of [form, new URLSearchParams({ 'List-Unsubscribe': 'One-Click' })]) {
    await user.request('PATCH', '/notice-settings', { json: { kinds: { secret_rotated: true } } });
    const headers = { origin: 'https://mail.example', 'sec-fetch-site': 'cross-site' };
    const response = await fetch(url, { method: 'POST', body, headers });
    assert.equal(response.status, 200);
    assert.match(await response.text(), /You get no more mail when the secret of an app/);
    assert.deepEqual(
      Object.entries(await choices()).filter(([, isOn]) => !isOn),
      [['secret_rotated', false]],
    );
  }
  await endHour();
  await user.request('POST', `/subscriptions/${id}/rotate-secret`);
  await settle(user.account);
  assert.equal(sentTo(user.account).length, 1);
});

test('attack: changed, foreign and repeated unsubscribe tokens stop nothing', async () => {
  const user = await createConsoleUser(server);
  const victim = await createTestAccount(server);
  const token = tokens.make(user.account.id, 'failing');
  const foreign = createUnsubscribeTokens(Buffer.from('another secret, also of 32 bytes!!!!'));
  const forged = [
    '',
    token.replace(user.account.id, victim.id),
    token.replace('failing', 'disabled'),
    `${token}x`,
    token.slice(0, -1),
    `${token}.${token}`,
    foreign.make(victim.id, 'failing'),
    `${victim.id}.failing.`,
    `${victim.id}.unknown.${'a'.repeat(43)}`,
  ];
  for (const each of forged) {
    const url = `${baseUrl}/account/unsubscribe?${new URLSearchParams({ token: each })}`;
    for (const method of ['GET', 'POST']) assert.equal((await fetch(url, { method })).status, 404, each);
  }
  const twice = `${baseUrl}/account/unsubscribe?token=${token}&token=${token}`;
  assert.equal((await fetch(twice, { method: 'POST' })).status, 404);
  const { rows } = await sql`
    select from declined_notices where account_id in (${user.account.id}, ${victim.id})`.execute(db);
  assert.equal(rows.length, 0);
});

test('the account page changes which notices its user gets, with a form token', async () => {
  const user = await createConsoleUser(server);
  await subscribeUser(user);
  const browser = new TestBrowser(baseUrl);
  const signIn = await browser.open(`${baseUrl}/account`);
  const page = await browser.submit(signIn, { email: user.account.email, password: user.account.password });
  for (const kind of noticeKinds) assert.match(page.text, new RegExp(`name="${kind}" value="on" checked`));
  const token = /action="\/account\/notices">\s*<input type="hidden" name="form_token" value="([^"]+)"/.exec(
    page.text,
  )?.[1];
  const post = (fields: Record<string, string>) =>
    browser.open(`${baseUrl}/account/notices`, {
      method: 'POST',
      body: new URLSearchParams(fields),
      headers: { origin: baseUrl },
    });
  const forged = await post({ form_token: 'guessed' });
  assert.equal(forged.response.status, 403);
  const saved = await post({ form_token: token as string, failing: 'on', disabled: 'on', unknown: 'on' });
  assert.match(saved.text, /Your settings are saved/);
  const { body } = await user.request('GET', '/notice-settings');
  assert.deepEqual(body.kinds, {
    failing: true,
    disabling: false,
    disabled: true,
    recovered: false,
    secret_rotated: false,
    app_suspended: false,
  });
  assert.deepEqual([body.email, body.is_mail_on], [user.account.email, true]);
});

test('users without apps and subscriptions see nothing about notices', async () => {
  const account = await createTestAccount(server);
  const browser = new TestBrowser(baseUrl);
  const signIn = await browser.open(`${baseUrl}/account`);
  const page = await browser.submit(signIn, { email: account.email, password: account.password });
  assert.match(page.text, /Connected apps/);
  assert.doesNotMatch(page.text, /Mail notices/);
});

test('the API changes the given kinds only, and refuses others', async () => {
  const user = await createConsoleUser(server);
  const patch = (json: unknown) => user.request('PATCH', '/notice-settings', { json });
  const { body } = await patch({ kinds: { recovered: false } });
  assert.deepEqual([body.kinds.recovered, body.kinds.failing], [false, true]);
  assert.equal((await patch({ kinds: { failing: false } })).body.kinds.recovered, false);
  assert.equal((await patch({ kinds: { recovered: true } })).body.kinds.failing, false);
  for (const wrong of [
    {},
    { kinds: { other: true } },
    { kinds: { failing: 'no' } },
    { kinds: { failing: null } },
  ]) {
    assert.equal((await patch(wrong)).status, 422, JSON.stringify(wrong));
  }
});

test('a notice of a day ago is not sent', async () => {
  const user = await createConsoleUser(server);
  const id = await subscribeUser(user);
  await sql`
    insert into notices (account_id, kind, subscription_id, at)
    values (${user.account.id}, 'secret_rotated', ${id}, now() - interval '25 hours')`.execute(db);
  await settle(user.account);
  assert.deepEqual(sentTo(user.account), []);
});
