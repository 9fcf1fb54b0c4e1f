/** The outbox and the mailer, with a real SMTP server and a real database. */

import assert from 'node:assert/strict';
import { after, beforeEach, test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { createAccount, disableAccount } from '../../src/accounts/account.ts';
import { newId } from '../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import type { MailContent } from '../../src/mail/content.ts';
import type { Mailer, MailerOptions } from '../../src/mail/mailer.ts';
import { claimMail, type NewMail, queueMail, retryDelaysSeconds } from '../../src/mail/outbox.ts';
import { createSmtpTransport } from '../../src/mail/transport.ts';
import { createDatabase } from '../support/database/database.ts';
import { createTestMailer } from '../support/mail/mailer.ts';
import { startSmtpServer } from '../support/mail/smtp_server.ts';

const database = await createDatabase();
const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
after(async () => {
  await db.destroy();
  await database.drop();
});
const inbox = await startSmtpServer({ after });
beforeEach(async () => {
  await sql`delete from mails`.execute(db);
  inbox.mails.length = 0;
  inbox.attempts.length = 0;
  inbox.refuse = () => undefined;
  inbox.hold = () => undefined;
});

interface TestMailer {
  mailer: Mailer;
  /** The log so far. */
  log: () => string;
  registry: Registry;
}

function createMailer(options: Partial<MailerOptions> & { smtpUrl?: string } = {}): TestMailer {
  const lines: string[] = [];
  const registry = new Registry();
  const mailer = createTestMailer({
    db,
    transport: createSmtpTransport(options.smtpUrl ?? inbox.url),
    logger: pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) }),
    registry,
    ...options,
  });
  return { mailer, log: () => lines.join(''), registry };
}

const content: MailContent = {
  subject: 'You are invited to “Reader”',
  title: 'Join “Reader”',
  paragraphs: ['Ada invites you to develop the app “Reader”.'],
  action: { text: 'Open the invitation', path: '/console/apps' },
};

function queue(mail: Partial<NewMail> = {}): Promise<string> {
  const whole: NewMail = { to: { address: 'ada@example.com' }, kind: 'invitation', content, ...mail };
  return db.transaction().execute((tx) => queueMail(tx, whole));
}

interface MailRow {
  attempts: number;
  last_error: string | null;
  is_sent: boolean;
  is_ended: boolean;
  content: unknown;
  wait: number;
}

async function rowOf(id: string): Promise<MailRow> {
  const { rows } = await sql<MailRow>`
    select attempts, last_error, sent_at is not null as is_sent, ended_at is not null as is_ended, content,
      extract(epoch from due_at - now())::float8 as wait
    from mails where id = ${id}`.execute(db);
  return rows[0] as MailRow;
}

/** Makes all waiting mails due. */
const makeDue = () => sql`update mails set due_at = now() where sent_at is null`.execute(db);
const newAddress = () => `${newId()}@example.com`;

test('a mail is sent once, as text and HTML in the brand, and its content is erased', async () => {
  const { mailer, registry, log } = createMailer();
  const id = await queue();
  await mailer.pass();
  await mailer.pass();
  assert.equal(inbox.mails.length, 1);
  const { from, to, raw, parsed } = inbox.mails[0] as (typeof inbox.mails)[0];
  assert.deepEqual([from, to], ['no-reply@acme.example', ['ada@example.com']]);
  assert.equal(parsed.from?.text, '"Acme" <no-reply@acme.example>');
  assert.equal(parsed.subject, content.subject);
  assert.equal(parsed.messageId, `<${id}@acme.example>`);
  assert.match(raw, /^Auto-Submitted: auto-generated\r$/m);
  assert.doesNotMatch(raw, /List-Unsubscribe|nuncio/i);
  for (const text of [parsed.text, parsed.html]) {
    assert(typeof text === 'string');
    assert.match(text, /Ada invites you to develop the app “Reader”/);
    assert.match(text, /https:\/\/api\.acme\.example\/console\/apps/);
    assert.match(text, /https:\/\/acme\.example\/help/);
    assert.match(text, /Acme/);
  }
  const { is_sent, content: kept } = await rowOf(id);
  assert.deepEqual([is_sent, kept], [true, null]);
  const metrics = await registry.metrics();
  assert.match(metrics, /nuncio_mails_total\{outcome="sent"\} 1/);
  assert.match(metrics, /nuncio_mails_waiting 0/);
  assert.match(log(), new RegExp(`"mail":"${id}".*mail sent`));
  assert.doesNotMatch(log(), /ada@example/);
});

test('a mail of a transaction that is rolled back is not sent', async () => {
  const failing = db.transaction().execute(async (tx) => {
    await queueMail(tx, { to: { address: 'ada@example.com' }, kind: 'invitation', content });
    throw new Error('rolled back');
  });
  await assert.rejects(failing, /rolled back/);
  await createMailer().mailer.pass();
  assert.deepEqual(inbox.attempts, []);
});

test('while the SMTP server is down mails wait, and are sent when it is back', async (t) => {
  const down = await startSmtpServer(t);
  await down.stop();
  const { mailer, log, registry } = createMailer({ smtpUrl: down.url });
  const first = await queue();
  const second = await queue({ to: { address: newAddress() } });
  await mailer.pass();
  const rows = [await rowOf(first), await rowOf(second)];
  // After the first failure the others are not tried in this pass, and it does not count against them.
  assert.deepEqual(
    rows.map(({ attempts }) => attempts),
    [1, 0],
  );
  assert.match(rows[0]?.last_error ?? '', /ECONNREFUSED/);
  for (const { wait, is_ended } of rows) assert(wait > 0 && !is_ended);
  assert.match(log(), /mail failed, it will be retried/);
  assert.match(await registry.metrics(), /nuncio_mails_waiting 2/);
  await down.restart();
  await makeDue();
  await mailer.pass();
  assert.equal(down.mails.length, 2);
});

test('a mail that gets 4xx is retried later, without holding up others', async () => {
  const { mailer } = createMailer();
  inbox.refuse = (recipient) => (recipient === 'busy@example.com' ? '450 mailbox busy' : undefined);
  const busy = await queue({ to: { address: 'busy@example.com' } });
  await queue();
  await mailer.pass();
  assert.deepEqual(
    inbox.mails.flatMap(({ to }) => to),
    ['ada@example.com'],
  );
  const { attempts, wait, last_error } = await rowOf(busy);
  assert.equal(attempts, 1);
  assert(wait > 30 && wait <= 60, String(wait));
  assert.match(last_error ?? '', /450 mailbox busy/);
  await mailer.pass();
  assert.equal(inbox.attempts.filter((recipient) => recipient === 'busy@example.com').length, 1);
  inbox.refuse = () => undefined;
  await makeDue();
  await mailer.pass();
  assert.equal((await inbox.waitFor('busy@example.com')).length, 1);
});

test('a mail that gets 5xx is not retried, and its content is erased', async () => {
  const { mailer, registry } = createMailer();
  inbox.refuse = () => '550 no such user';
  const id = await queue();
  await mailer.pass();
  await makeDue();
  await mailer.pass();
  assert.deepEqual(inbox.attempts, ['ada@example.com']);
  const { is_ended, last_error, content: kept } = await rowOf(id);
  assert.deepEqual([is_ended, kept], [true, null]);
  assert.match(last_error ?? '', /550 no such user/);
  assert.match(await registry.metrics(), /nuncio_mails_total\{outcome="refused"\} 1/);
});

test('a mail is given up after the last retry', async () => {
  const { mailer, registry } = createMailer();
  inbox.refuse = () => '451 later';
  const id = await queue();
  for (let attempt = 0; attempt < retryDelaysSeconds.length + 3; attempt += 1) {
    await mailer.pass();
    await makeDue();
  }
  assert.equal(inbox.attempts.length, retryDelaysSeconds.length + 1);
  assert.equal((await rowOf(id)).is_ended, true);
  assert.match(await registry.metrics(), /nuncio_mails_total\{outcome="given_up"\} 1/);
});

test('a mail that has waited for more than two days is dropped', async () => {
  const id = await queue();
  await sql`update mails set created_at = now() - interval '49 hours'`.execute(db);
  await createMailer().mailer.pass();
  assert.deepEqual(inbox.attempts, []);
  assert.equal((await rowOf(id)).is_ended, true);
});

test('two nodes send each mail once', async (t) => {
  const addresses = Array.from({ length: 60 }, newAddress);
  for (const address of addresses) await queue({ to: { address } });
  const nodes = [1, 2, 3].map(() => {
    const own: Database = openDatabase({ connectionString: database.url, connectionsMax: 3 });
    t.after(() => own.destroy());
    return createMailer({ db: own }).mailer;
  });
  const left = async () =>
    (await sql<{ count: number }>`select count(*)::int as count from mails where sent_at is null`.execute(db))
      .rows[0]?.count;
  while ((await left()) !== 0) await Promise.all(nodes.map((node) => node.pass()));
  assert.deepEqual(inbox.mails.flatMap(({ to }) => to).sort(), addresses.sort());
});

test('a mail that a killed node had claimed is sent by another when the claim ends', async () => {
  const id = await queue();
  assert.notEqual(await claimMail(db, id), undefined);
  const { mailer } = createMailer();
  await mailer.pass();
  assert.deepEqual(inbox.attempts, []);
  await makeDue();
  await mailer.pass();
  assert.equal(inbox.mails[0]?.parsed.messageId, `<${id}@acme.example>`);
});

test('an address gets ten mails of a kind in an hour, and others wait', async () => {
  const { mailer } = createMailer();
  for (let count = 0; count < 12; count += 1) await queue();
  await queue({ kind: 'password_reset' });
  await queue({ to: { address: 'grace@example.com' } });
  await mailer.pass();
  assert.equal(inbox.mails.filter(({ to }) => to[0] === 'ada@example.com').length, 11);
  assert.equal(inbox.mails.filter(({ to }) => to[0] === 'grace@example.com').length, 1);
  await sql`update mails set sent_at = sent_at - interval '61 minutes'`.execute(db);
  await makeDue();
  await mailer.pass();
  assert.equal(inbox.mails.filter(({ to }) => to[0] === 'ada@example.com').length, 13);
});

test('an account gets mail at its address of then, and none once it is disabled or deleted', async () => {
  const { mailer, registry } = createMailer();
  const create = (email: string) => createAccount(db, { email, password: null });
  const [moved, disabled, erased] = [
    await create(newAddress()),
    await create(newAddress()),
    await create(newAddress()),
  ];
  for (const { id } of [moved, disabled, erased]) await queue({ to: { accountId: id } });
  const address = newAddress();
  await sql`update accounts set email = ${address} where id = ${moved.id}`.execute(db);
  await disableAccount(db, disabled.id);
  await sql`delete from accounts where id = ${erased.id}`.execute(db);
  await mailer.pass();
  assert.deepEqual(inbox.attempts, [address]);
  assert.match(await registry.metrics(), /nuncio_mails_total\{outcome="dropped"\} 1/);
  assert.equal((await sql`select from mails where account_id = ${erased.id}`.execute(db)).rows.length, 0);
});

test('an external account gets mail only at an address that its application has verified', async () => {
  const { mailer } = createMailer();
  const addresses = new Map<boolean | null, string>();
  for (const isVerified of [true, false, null]) {
    const [id, address] = [newId(), newAddress()];
    addresses.set(isVerified, address);
    await sql`
      insert into accounts (id, email, email_verified, name, external_id)
      values (${id}, ${address}, ${isVerified}, '', ${id})`.execute(db);
    await queue({ to: { accountId: id } });
  }
  await mailer.pass();
  assert.deepEqual(inbox.attempts, [addresses.get(true)]);
});

test('attack: names with line breaks, HTML or great length add no header, markup or recipient', async () => {
  const hostile = `Evil\r\nBcc: victim@example.com\r\n\r\n<script>alert(1)</script>"><img src=x onerror=1>\u202e\u0000${'long '.repeat(5_000)}`;
  const { mailer } = createMailer({
    brand: { name: hostile, accent: '#3949c6', onAccent: '#ffffff', supportUrl: null },
  });
  await queue({
    content: {
      subject: hostile,
      title: hostile,
      paragraphs: [hostile],
      sections: [
        { heading: hostile, facts: [[hostile, hostile]], link: { text: hostile, path: '/console' } },
      ],
      action: { text: hostile, path: '/console' },
      closing: [hostile],
    },
  });
  await mailer.pass();
  assert.deepEqual(inbox.attempts, ['ada@example.com']);
  const { raw, parsed, to } = inbox.mails[0] as (typeof inbox.mails)[0];
  assert.deepEqual(to, ['ada@example.com']);
  assert.equal(parsed.bcc, undefined);
  assert.equal(parsed.headers.has('bcc'), false);
  assert.ok((parsed.subject ?? '').length <= 120);
  assert.match(parsed.subject ?? '', /^Evil Bcc: victim@example\.com/);
  const page = String(parsed.html);
  assert.doesNotMatch(page, /<script|<img|onerror=1>[^&]*</);
  assert.match(page, /&lt;script&gt;/);
  for (const text of [page, parsed.text ?? '']) assert.doesNotMatch(text, /[\u202e\0]/);
  assert.doesNotMatch(parsed.text ?? '', /^Bcc:/m);
  assert.ok(raw.length < 40_000, String(raw.length));
  assert.ok(raw.split('\r\n').every((line) => line.length <= 998));
});

test('attack: an address that looks like a list, or has a line break, gets no mail', async () => {
  const { mailer } = createMailer();
  const addresses = [
    'a@example.com,victim@example.com',
    'a@example.com>\r\nRCPT TO:<victim@example.com',
    'Ada <ada@example.com>',
    '"a b"@example.com',
    'ada',
  ];
  for (const address of addresses) await queue({ to: { address } });
  await mailer.pass();
  assert.deepEqual(inbox.attempts, []);
  const { rows } = await sql`select from mails where ended_at is not null`.execute(db);
  assert.equal(rows.length, addresses.length);
});

test('the password of the SMTP server is in no log, even if the server repeats it', async (t) => {
  const password = 'p@ss:word/with spaces';
  const base64 = Buffer.from(password).toString('base64');
  const guarded = await startSmtpServer(t, {
    onAuth: (auth, _session, done) => {
      if (auth.username === 'mailer' && auth.password === password) return done(null, { user: 'mailer' });
      done(new Error(`no: ${auth.password} ${Buffer.from(auth.password ?? '').toString('base64')}`));
    },
  });
  const urlOf = (user: string) =>
    guarded.url.replace('//', `//${encodeURIComponent(user)}:${encodeURIComponent(password)}@`);
  const id = await queue();
  const refused = createMailer({ smtpUrl: urlOf('other') });
  await refused.mailer.pass();
  const { last_error, is_ended } = await rowOf(id);
  assert.match(last_error ?? '', /EAUTH.*no: \*\*\* \*\*\*/);
  assert.equal(is_ended, false, 'wrong credentials can be mended');
  for (const secret of [password, encodeURIComponent(password), base64]) {
    assert.ok(!`${refused.log()}${last_error}`.includes(secret));
  }
  await makeDue();
  await createMailer({ smtpUrl: urlOf('mailer') }).mailer.pass();
  assert.equal(guarded.mails.length, 1);
});

test('credentials are not sent to another machine without TLS', async (t) => {
  let isAsked = false;
  const plain = await startSmtpServer(t, {
    onAuth: (_auth, _session, done) => {
      isAsked = true;
      done(null, { user: 'mailer' });
    },
  });
  const id = await queue();
  // Another name of this machine that does not count as one of loopback.
  const smtpUrl = plain.url.replace('//127.0.0.1', '//mailer:secret@[::ffff:127.0.0.1]');
  await createMailer({ smtpUrl }).mailer.pass();
  assert.match((await rowOf(id)).last_error ?? '', /ETLS/);
  assert.deepEqual([isAsked, plain.mails.length], [false, 0]);
});

test('an error of the composer fails only its mail', async () => {
  const { mailer } = createMailer({
    compose: async () => {
      throw new Error('cannot compose');
    },
  });
  const broken = await queue({ kind: 'failing', content: null });
  await queue();
  await mailer.pass();
  assert.equal(inbox.mails.length, 1);
  assert.match((await rowOf(broken)).last_error ?? '', /cannot compose/);
});
