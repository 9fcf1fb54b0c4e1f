/** `/dev/mail`: mails that are kept in development, and who can see them. */

import assert from 'node:assert/strict';
import { request as httpRequest } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { queueMail } from '../../src/mail/outbox.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { phone } from '../support/console/places.ts';
import { startSmtpServer } from '../support/mail/smtp_server.ts';
import { freePort, startTestServer, type TestServer } from '../support/servers/server.ts';
import { subscribe, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { baseUrl, db } = server;

async function open(path: string, headers: Record<string, string> = {}) {
  const response = await fetch(baseUrl + path, { headers });
  return { status: response.status, text: await response.text(), headers: response.headers };
}

const waitForSubject = (subject: string) =>
  until(
    () => open('/dev/mail'),
    ({ text }) => text.includes(subject),
  );

/** Queues a mail and waits until it is kept. @returns its path */
async function keep({ db }: Pick<TestServer, 'db'>, subject: string, text = 'Hello'): Promise<string> {
  const content = { subject, title: subject, paragraphs: [text] };
  const to = { address: `${crypto.randomUUID()}@example.com` };
  await db.transaction().execute((tx) => queueMail(tx, { to, kind: 'test', content }));
  const { text: list } = await waitForSubject(subject);
  return new RegExp(`href="(/dev/mail/\\d+)"><strong>${subject}`).exec(list)?.[1] as string;
}

test('without an SMTP server, development shows the mails of notices and whom they were for', async () => {
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: 'https://hooks.example.com/in', kinds: ['article.published'] });
  await user.request('POST', `/subscriptions/${id}/rotate-secret`);
  await sql`update notices set at = at - interval '1 minute'`.execute(db);
  const { text, headers } = await waitForSubject('New secret for the webhook to hooks.example.com');
  assert.ok(text.includes(user.account.email));
  assert.match(headers.get('content-security-policy') ?? '', /default-src 'none'/);
  const path = /href="(\/dev\/mail\/\d+)"/.exec(text)?.[1] as string;
  const mail = await open(path);
  assert.match(mail.text, /<iframe [^>]*sandbox="allow-popups allow-popups-to-escape-sandbox"/);
  assert.match(mail.text, /List-Unsubscribe: http/);
  const frame = await open(`${path}/html`);
  const policy = frame.headers.get('content-security-policy') ?? '';
  assert.match(policy, /default-src 'none'.*sandbox allow-popups/);
  assert.doesNotMatch(policy, /allow-scripts|allow-same-origin|script-src/);
  assert.match(frame.text, /New secret for the webhook/);
});

test('attack: the HTML of a mail runs no script, loads nothing and cannot reach the page around it', async (t) => {
  const path = await keep(server, 'Hostile', '<script>parent.document.title = "taken"</script><img src=x>');
  const browser = await startBrowser(t);
  const { page, problems } = await openPage(browser, phone);
  const requests: string[] = [];
  page.on('request', (request) => requests.push(new URL(request.url()).pathname));
  await page.goto(baseUrl + path);
  const frame = page.frameLocator('iframe');
  assert.equal(await frame.locator('h1').textContent(), 'Hostile');
  assert.match((await frame.locator('p').allTextContents()).join(' '), /<script>parent/);
  assert.equal(await frame.locator('img, script').count(), 0);
  assert.match(await page.title(), /^Mail/);
  assert.ok(!requests.includes('/dev/mail/x'));
  assert.deepEqual(problems, []);
  // Also on its own the document has no rights of this server's pages, if a template should forget to escape.
  await page.goto(`${baseUrl}${path}/html`);
  assert.equal(await page.evaluate('self.origin'), 'null');
});

test('attack: other machines, proxies and rebound host names cannot see the mails', async () => {
  const path = await keep(server, 'Private');
  const { port } = new URL(baseUrl);
  const statusWith = (headers: Record<string, string>, at = path) =>
    new Promise<number | undefined>((resolve, reject) => {
      const request = httpRequest({ host: '127.0.0.1', port, path: at, headers }, (response) => {
        response.resume();
        resolve(response.statusCode);
      });
      request.on('error', reject).end();
    });
  for (const at of ['/dev/mail', path, `${path}/html`]) {
    assert.equal(await statusWith({}, at), 200);
    assert.equal(await statusWith({ 'x-forwarded-for': '203.0.113.7' }, at), 403);
    assert.equal(await statusWith({ host: `rebound.example:${port}` }, at), 403);
  }
});

test('unknown mails are not found', async () => {
  for (const number of ['0', '999999', 'x', '-1', '1e0x']) {
    assert.equal((await open(`/dev/mail/${number}`)).status, 404, number);
  }
});

test('only the newest 100 mails are kept', async () => {
  const content = { subject: 'One of many', title: 'One of many', paragraphs: [] };
  await db.transaction().execute(async (tx) => {
    for (let at = 0; at < 101; at += 1) {
      await queueMail(tx, { to: { address: `many-${at}@example.com` }, kind: 'test', content });
    }
  });
  await until(
    async () => (await sql`select from mails where sent_at is null`.execute(db)).rows.length,
    (count) => count === 0,
  );
  const { text } = await open('/dev/mail');
  assert.equal(text.match(/<li>/g)?.length, 100);
  assert.doesNotMatch(text, /Hostile|Private/);
});

test('production has no such page, and neither has development with an SMTP server', async (t) => {
  const inbox = await startSmtpServer(t);
  const settings = { NUNCIO_BASE_URL: `http://localhost:${await freePort()}`, NUNCIO_SECRET: 'x'.repeat(32) };
  const production = await startTestServer(t, { ...settings, NUNCIO_CONFIG: 'nuncio.config.ts' }, 'start');
  const sending = await startTestServer(t, { NUNCIO_SMTP_URL: inbox.url });
  for (const { config } of [production, sending]) {
    const response = await fetch(`http://localhost:${config.port}/dev/mail`);
    assert.equal(response.status, 404);
  }
});

test('in production without an SMTP server nothing is sent, and the account page does not offer it', async (t) => {
  const settings = { NUNCIO_SECRET: 'x'.repeat(32), NUNCIO_CONFIG: 'nuncio.config.ts' };
  const production = await startTestServer(t, settings, 'start');
  const user = await createConsoleUser(production);
  const { body } = await user.request('GET', '/notice-settings');
  assert.equal(body.is_mail_on, false);
});
