/** Several mails at once, with a real SMTP server and a real database: what one recipient does, others do not wait for. */

import assert from 'node:assert/strict';
import { after, beforeEach, test } from 'node:test';
import { sql } from 'kysely';
import { createAccount } from '../../src/accounts/account.ts';
import { mailAddressSql } from '../../src/accounts/mail_address.ts';
import { newId } from '../../src/crypto/ids.ts';
import { openDatabase } from '../../src/database/database.ts';
import type { Mailer, MailerOptions } from '../../src/mail/mailer.ts';
import { claimMail, queueMail, readDueMails } from '../../src/mail/outbox.ts';
import { placesMax } from '../../src/mail/places.ts';
import { createSmtpTransport } from '../../src/mail/transport.ts';
import { createDatabase } from '../support/database/database.ts';
import { createTestMailer } from '../support/mail/mailer.ts';
import { startSmtpServer } from '../support/mail/smtp_server.ts';
import { until } from '../support/webhooks/apps.ts';

const database = await createDatabase();
const db = openDatabase({ connectionString: database.url, connectionsMax: 10 });
after(async () => {
  await db.destroy();
  await database.drop();
});
const inbox = await startSmtpServer({ after });
beforeEach(async () => {
  await sql`delete from mails`.execute(db);
  inbox.mails.length = 0;
  inbox.attempts.length = 0;
});

/** How long the server may be silent, in the test of a timeout. */
const silenceMs = 5_000;

function createMailer(options: Partial<MailerOptions> = {}): Mailer {
  return createTestMailer({ db, transport: createSmtpTransport(inbox.url), ...options });
}

const content = { subject: 'News', title: 'News', paragraphs: ['Something happened.'] };

function queue(address: string, kind = 'invitation'): Promise<string> {
  return db.transaction().execute((tx) => queueMail(tx, { to: { address }, kind, content }));
}

/** The server does not respond to these recipients until the test releases them. */
function holdBack(isHeld: (recipient: string) => boolean): () => void {
  const { promise, resolve } = Promise.withResolvers<void>();
  inbox.hold = (recipient) => (isHeld(recipient) ? promise : undefined);
  return () => {
    inbox.hold = () => undefined;
    resolve();
  };
}

const heldAt = (domain: string) => inbox.attempts.filter((address) => address.endsWith(`@${domain}`));
const inDomain = (domain: string, count: number) =>
  Array.from({ length: count }, (_, index) => `user${index}@${domain}`);

async function queueAll(addresses: readonly string[]): Promise<void> {
  for (const address of addresses) await queue(address);
}

/** Makes the recipients known: each has accepted a mail. */
async function acquaint(addresses: readonly string[]): Promise<void> {
  await queueAll(addresses);
  await createMailer().pass();
  assert.equal(inbox.mails.length, addresses.length);
  inbox.mails.length = 0;
  inbox.attempts.length = 0;
}

test('mails are sent while the queueing of others waits for a locked row', async () => {
  const { id } = await createAccount(db, { email: `${newId()}@example.com`, password: null });
  await queue('user@example.com');
  const lock = sql`select from accounts where id = ${id} for update`;
  const waiting = Promise.withResolvers<void>();
  const prepare = async () => {
    await lock.execute(db);
    waiting.resolve();
  };
  await db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await lock.execute(tx);
    await createMailer({ prepare }).pass();
    assert.equal(inbox.mails.length, 1);
  });
  await waiting.promise;
});

test('mails behind a recipient whose mail hangs are sent while it hangs', async () => {
  await queue('hangs@slow.example');
  const others = inDomain('example.com', 10);
  await queueAll(others);
  const release = holdBack((recipient) => recipient === 'hangs@slow.example');
  const pass = createMailer().pass();
  await until(
    async () => inbox.mails.length,
    (count) => count === others.length,
  );
  assert.deepEqual(heldAt('slow.example'), ['hangs@slow.example']);
  release();
  await pass;
  assert.equal(inbox.mails.length, others.length + 1);
});

test('attack: a domain whose mails all hang takes no place of others, and one recipient takes one', async () => {
  await queueAll([...inDomain('slow.example', 20), 'one@slow2.example', 'one@slow2.example']);
  await queueAll(inDomain('example.com', 5));
  const release = holdBack((recipient) => recipient.includes('@slow'));
  const pass = createMailer().pass();
  await until(
    async () => inbox.mails.length,
    (count) => count === 5,
  );
  assert.ok(heldAt('slow.example').length < placesMax / 2, heldAt('slow.example').join());
  assert.ok(heldAt('slow2.example').length <= 1);
  release();
  await pass;
  assert.equal(inbox.mails.length, 27);
});

test('attack: many new domains that hang hold half of the places, and known recipients get their mail', async () => {
  const known = inDomain('known.example', 6);
  await acquaint(known);
  await queueAll(Array.from({ length: 30 }, (_, index) => `user@slow${index}.example`));
  await queueAll(known);
  const release = holdBack((recipient) => recipient.startsWith('user@slow'));
  const pass = createMailer().pass();
  await until(
    async () => inbox.mails.length,
    (count) => count === known.length,
  );
  const held = inbox.attempts.filter((address) => address.startsWith('user@slow'));
  assert.ok(held.length <= placesMax / 2, String(held.length));
  release();
  await pass;
  assert.equal(inbox.mails.length, known.length + 30);
});

test('attack: older mails of four domains that hang come after mails to new recipients', async () => {
  const mailer = createMailer();
  const slow = ['slow0.example', 'slow1.example', 'slow2.example', 'slow3.example'];
  await queueAll(slow.map((domain) => `first@${domain}`));
  inbox.refuse = () => '421 closing';
  await mailer.pass();
  inbox.refuse = () => undefined;
  inbox.attempts.length = 0;
  await queueAll(slow.flatMap((domain) => inDomain(domain, 2)));
  const others = inDomain('example.com', 3);
  await queueAll(others);
  const release = holdBack((recipient) => recipient.includes('@slow'));
  const pass = mailer.pass();
  await until(
    async () => inbox.mails.length,
    (count) => count === others.length,
  );
  release();
  await pass;
  assert.equal(inbox.mails.length, others.length + 2 * slow.length);
});

test('attack: thousands of mails of one domain do not hide the mail of another one', async () => {
  await sql`
    insert into mails (id, kind, address, content, due_at)
    select gen_random_uuid(), 'invitation', 'user' || n || '@flood.example', ${JSON.stringify(content)}::json, now() - interval '1 hour'
    from generate_series(1, 3000) as n`.execute(db);
  await queue('ada@example.com');
  const read = await readDueMails(db, { addressSql: mailAddressSql, lastKinds: [], max: 10 });
  assert.deepEqual(read.map(({ domain }) => domain).slice(0, 3), [
    'flood.example',
    'example.com',
    'flood.example',
  ]);
  const release = holdBack((recipient) => recipient.endsWith('@flood.example'));
  const mailer = createMailer();
  const pass = mailer.pass();
  await inbox.waitFor('ada@example.com');
  const stopped = mailer.stop();
  release();
  await Promise.all([pass, stopped]);
});

test('mails of other kinds go before those that may wait, and first attempts before retries', async () => {
  const ids = new Map<string, string>();
  for (const [name, kind] of [
    ['news', 'newsletter'],
    ['retry', 'invitation'],
    ['reset', 'password_reset'],
  ] as const) {
    ids.set(await queue(`${name}@example.com`, kind), name);
  }
  await sql`
    update mails set attempts = 1, last_error = 'busy', due_at = now() - interval '1 hour'
    where address = 'retry@example.com'`.execute(db);
  const read = await readDueMails(db, {
    addressSql: mailAddressSql,
    lastKinds: ['newsletter'],
    max: 10,
  });
  assert.deepEqual(
    read.map(({ id }) => ids.get(id)),
    ['reset', 'retry', 'news'],
  );
});

test('an account counts for the domain of its address now, and one without an address for itself', async () => {
  const { id } = await createAccount(db, { email: 'Ada@Example.com', password: null });
  const gone = await createAccount(db, { email: `${newId()}@example.com`, password: null });
  await sql`update accounts set disabled_at = now() where id = ${gone.id}`.execute(db);
  for (const accountId of [id, gone.id]) {
    await db.transaction().execute((tx) => queueMail(tx, { to: { accountId }, kind: 'news', content }));
  }
  const read = await readDueMails(db, { addressSql: mailAddressSql, lastKinds: [], max: 10 });
  assert.deepEqual(
    new Map(read.map(({ recipient, domain }) => [recipient, domain])),
    new Map([
      ['ada@example.com', 'example.com'],
      [gone.id, ''],
    ]),
  );
});

test('a timeout delays its own mail only, which is sent when its recipient responds', async () => {
  const id = await queue('hangs@slow.example');
  await queueAll(inDomain('example.com', 3));
  const release = holdBack((recipient) => recipient === 'hangs@slow.example');
  const mailer = createMailer({ transport: createSmtpTransport(inbox.url, silenceMs) });
  await mailer.pass();
  assert.equal(inbox.mails.length, 3);
  const { rows } = await sql<{ attempts: number; last_error: string; waits: boolean; is_kept: boolean }>`
    select attempts, last_error, due_at > now() as waits, content is not null as is_kept
    from mails where id = ${id}`.execute(db);
  assert.deepEqual(rows[0], {
    attempts: 1,
    last_error: 'ETIMEDOUT: Timeout',
    waits: true,
    is_kept: true,
  });
  // Nothing else waits for it.
  await queue('grace@example.com');
  await mailer.pass();
  assert.equal((await inbox.waitFor('grace@example.com')).length, 1);
  release();
  await sql`update mails set due_at = now() where id = ${id}`.execute(db);
  await mailer.pass();
  assert.equal((await inbox.waitFor('hangs@slow.example')).length, 1);
});

test('a node that stops does not wait for a mail that hangs, which is sent again', async () => {
  const id = await queue('hangs@slow.example');
  const release = holdBack((recipient) => recipient === 'hangs@slow.example');
  const mailer = createMailer({ pauseMs: 10 });
  mailer.start();
  await until(
    async () => heldAt('slow.example').length,
    (count) => count === 1,
  );
  await mailer.stop();
  const { rows } = await sql<{ last_error: string }>`select last_error from mails where id = ${id}`.execute(
    db,
  );
  assert.match(rows[0]?.last_error ?? '', /^EABORT/);
  release();
  await sql`update mails set due_at = now() where id = ${id}`.execute(db);
  await createMailer().pass();
  assert.equal((await inbox.waitFor('hangs@slow.example')).length, 1);
});

test('a connection that ends for one recipient does not stop the mails of others', async (t) => {
  const server = await startSmtpServer(t);
  server.refuse = (recipient) => (recipient === 'ends@slow.example' ? '421 closing' : undefined);
  await queue('ends@slow.example');
  await queueAll(inDomain('example.com', 12));
  await createMailer({ transport: createSmtpTransport(server.url) }).pass();
  assert.equal(server.mails.length, 12);
});

test('attack: connections that end for many new domains do not make the mails of others wait', async (t) => {
  const server = await startSmtpServer(t);
  server.refuse = (recipient) => (recipient.includes('@ends') ? '421 closing' : undefined);
  await queueAll(Array.from({ length: 12 }, (_, index) => `user@ends${index}.example`));
  await queueAll(inDomain('example.com', 3));
  await createMailer({ transport: createSmtpTransport(server.url) }).pass();
  assert.equal(server.mails.length, 3);
  assert.equal(server.attempts.length, 12 + 3);
});

test('all mails are sent by a server that accepts few connections, each once and without an attempt more', async (t) => {
  const small = await startSmtpServer(t, { maxClients: 2 });
  const addresses = Array.from({ length: 12 }, (_, index) => `user@domain${index}.example`);
  await queueAll(addresses);
  const mailer = createMailer({ transport: createSmtpTransport(small.url) });
  await until(
    async () => {
      await mailer.pass();
      return small.mails.length;
    },
    (count) => count === addresses.length,
  );
  assert.deepEqual(small.mails.flatMap(({ to }) => to).sort(), addresses.sort());
});

test('attack: domains that hang at a server with one connection go behind known recipients', async (t) => {
  const server = await startSmtpServer(t, { maxClients: 1 });
  const transport = createSmtpTransport(server.url, silenceMs);
  await queue('known@example.com');
  await createMailer({ transport }).pass();
  server.attempts.length = 0;
  const { promise, resolve } = Promise.withResolvers<void>();
  server.hold = (recipient) => (recipient.endsWith('hangs.example') ? promise : undefined);
  await queueAll(
    ['one.hangs.example', 'two.hangs.example', 'three.hangs.example'].map((name) => `user@${name}`),
  );
  const mailer = createMailer({ transport, pauseMs: 10 });
  const first = mailer.pass();
  await until(
    async () => server.attempts.length,
    (count) => count === 1,
  );
  await queue('known@example.com');
  await server.waitFor('known@example.com', 2);
  await mailer.stop();
  resolve();
  await first;
  assert.equal(server.attempts.indexOf('known@example.com'), 1);
});

test('of several nodes one claims a mail', async () => {
  const id = await queue('ada@example.com');
  const claims = await Promise.all(Array.from({ length: 8 }, () => claimMail(db, id)));
  assert.equal(claims.filter((mail) => mail !== undefined).length, 1);
});

test('notices are collected while a mail hangs', async () => {
  await queue('hangs@slow.example');
  const release = holdBack((recipient) => recipient === 'hangs@slow.example');
  let isHanging = false;
  const mailer = createMailer({
    prepare: async () => {
      if (heldAt('slow.example').length === 0 || isHanging) return;
      isHanging = true;
      await queue('ada@example.com');
    },
  });
  const pass = mailer.pass();
  await inbox.waitFor('ada@example.com');
  release();
  await pass;
  assert.equal(inbox.mails.length, 2);
});
