/**
 * Attack: read the log at its finest level, the mails, the responses to wrong requests and the whole database after a run, and look for
 * every secret of the run: of apps, subscriptions, subscribers, links, the SMTP server and the deployment itself.
 */

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  clientToken,
  createTestAccount,
  createTestClient,
  mintAccessToken,
} from '../support/clients/oauth.ts';
import { startSmtpServer } from '../support/mail/smtp_server.ts';
import { prepareProcess, startProcess } from '../support/servers/process.ts';
import { createPublisher, publish, type Request, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const newSecret = (name: string) => `${name}-${randomBytes(18).toString('hex')}`;
const smtpPassword = newSecret('smtp');
const inbox = await startSmtpServer(
  { after },
  { onAuth: (_auth, _session, done) => done(null, { user: 'mailer' }) },
);
const metricsToken = newSecret('metrics');
const host = await prepareProcess(
  { after },
  {
    LOG_LEVEL: 'trace',
    NUNCIO_SMTP_URL: inbox.url.replace('//', `//mailer:${smtpPassword}@`),
    NUNCIO_METRICS_TOKEN: metricsToken,
  },
);
const nuncio = startProcess({ after }, ['start'], host.settings);
await nuncio.ready();
const subscriber = await startSubscriber({ after });

const secrets = new Map<string, string>([
  ['the password of the SMTP server', smtpPassword],
  ['the token of metrics', metricsToken],
  ['NUNCIO_SECRET', host.settings.NUNCIO_SECRET as string],
]);
const keep = (name: string, secret: unknown): string => {
  assert.ok(typeof secret === 'string' && secret.length >= 16, `${name}: ${secret}`);
  secrets.set(name, secret);
  return secret;
};

async function post(request: Request, path: string, json: unknown, method = 'POST') {
  const response = await request(method, path, { json });
  assert.ok(response.status < 300, `${method} ${path}: ${response.status} ${response.text}`);
  return response.body;
}

/** Uses everything that has a secret. @returns the user who gets the mails */
async function run() {
  const scopes = ['read:posts', 'read:profile', 'read:webhooks', 'write:webhooks', 'read:apps', 'write:apps'];
  const account = await createTestAccount(host);
  keep('the password of a user', account.password);
  const client = await createTestClient(host, { scopes });
  keep('the secret of a client', client.secret);
  const { accessToken } = await mintAccessToken(host, { account, client, scopes });
  keep('an access token', accessToken);
  const request = requester(host, accessToken);

  const app = await post(request, '/apps', {
    client_name: 'Reader',
    redirect_uris: ['https://reader.example/callback'],
    scope: 'read:profile',
  });
  keep('the secret of an app', app.client_secret);
  const replaced = await request('POST', `/apps/${app.client_id}/secrets`, {
    json: {},
    headers: { 'idempotency-key': 'the same' },
  });
  keep('the second secret of an app', replaced.body.client_secret);

  const subscription = await post(request, `/apps/${app.client_id}/subscriptions`, {
    url: subscriber.url,
    kinds: ['push'],
  });
  keep('the secret of a subscription', subscription.secret);
  const rotated = await post(request, `/subscriptions/${subscription.id}/rotate-secret`, { overlap: 3_600 });
  keep('the rotated secret of a subscription', rotated.secret);
  const credentials = [
    { type: 'basic', username: 'nuncio', password: keep('a basic password', newSecret('basic')) },
    { type: 'header', name: 'X-Api-Key', value: keep('the value of a header', newSecret('header')) },
    {
      type: 'oauth2',
      token_url: subscriber.url,
      client_id: 'nuncio',
      client_secret: keep('the secret for a token URL', newSecret('oauth2')),
    },
  ];
  const own = [];
  for (const auth of credentials) {
    own.push(await post(request, '/subscriptions', { url: subscriber.url, kinds: ['push'], auth }));
  }
  for (const { id, secret } of own) keep(`the secret of ${id}`, secret);
  await publish(await createPublisher(host), account, ['one']);
  for (const { id } of own.slice(0, 2)) {
    await until(
      async () => (await request('GET', `/subscriptions/${id}/deliveries`)).body.items,
      (items) => items.length > 0 && items[0].state === 'succeeded',
    );
  }

  const registered = await post(requester(host), '/oauth/register', {
    redirect_uris: ['https://registered.example/callback'],
  });
  keep('a registration access token', registered.registration_access_token);
  if (registered.client_secret !== undefined)
    keep('the secret of a registered app', registered.client_secret);

  const backend = await createTestClient(host, {
    scopes: ['write:accounts', 'write:logins'],
    grantTypes: ['client_credentials'],
  });
  const token = await clientToken(host, backend, ['write:accounts', 'write:logins']);
  keep('the token of a machine', token);
  const machine = requester(host, token);
  await post(machine, '/accounts/external/7', { name: 'Grace' }, 'PUT');
  const link = await post(machine, '/account-links', { account: { external_id: '7' } });
  const { pathname, search } = new URL(link.url);
  keep('the token of an account link', (/[\w-]{20,}/.exec(search || pathname) ?? [])[0]);
  await (await fetch(link.url, { redirect: 'manual' })).text();
  return { account, request };
}

/** Every secret in a wrong place. @returns the texts of the responses */
async function misuse(request: Request): Promise<string[]> {
  const texts: string[] = [];
  for (const [name, secret] of secrets) {
    // A sentence does not look like a secret.
    if (name === 'NUNCIO_SECRET') continue;
    const word = encodeURIComponent(secret);
    const anonymous = requester(host, secret);
    for (const path of [`/subscriptions/${word}`, `/deliveries/${word}`, `/apps/${word}`, `/${word}`])
      texts.push((await request('GET', path)).text);
    texts.push((await anonymous('GET', '/subscriptions')).text);
    texts.push((await request('GET', `/subscriptions?after=${word}`)).text);
    texts.push((await request('POST', '/subscriptions', { json: { url: secret, kinds: [secret] } })).text);
    texts.push(
      (
        await request('POST', '/subscriptions', {
          raw: secret,
          headers: { 'content-type': 'application/json' },
        })
      ).text,
    );
    // The page shows who sent it what was sent, and nobody else.
    const url = authorizationUrl(host, { id: secret, redirectUri: 'https://x.example/' }, {});
    await (await fetch(url, { redirect: 'manual' })).text();
    const form = new URLSearchParams({
      grant_type: 'refresh_token',
      refresh_token: secret,
      client_id: secret,
    });
    texts.push(await (await fetch(`${host.baseUrl}/oauth/token`, { method: 'POST', body: form })).text());
  }
  return texts;
}

/** The secret as it is, as bytes in hexadecimal digits, and what a webhook secret decodes to. */
function formsOf(secret: string): string[] {
  const forms = [
    secret,
    Buffer.from(secret).toString('hex'),
    Buffer.from(secret).toString('base64').replace(/=+$/, ''),
  ];
  if (secret.startsWith('whsec_')) forms.push(Buffer.from(secret.slice(6), 'base64').toString('hex'));
  return forms;
}

async function tablesWith(secret: string): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select format('%I.%I', schemaname, tablename) as name from pg_tables
    where schemaname not in ('pg_catalog', 'information_schema')`.execute(host.db);
  const found: string[] = [];
  for (const { name } of rows) {
    const { rows: hits } = await sql`
      select from ${sql.raw(name)} t where exists (
        select from unnest(${formsOf(secret)}::text[]) as form where strpos(t::text, form) > 0) limit 1`.execute(
      host.db,
    );
    if (hits.length > 0) found.push(name);
  }
  return found;
}

test('attack: neither the log, a mail, an error nor a table has a secret after a run', async () => {
  const { account, request } = await run();
  const before = nuncio.output();
  // Notices wait for others.
  await sql`update notices set at = at - interval '10 minutes'`.execute(host.db);
  const [mail] = await inbox.waitFor(account.email);
  assert.match(mail?.parsed.text ?? '', /secret/i, 'a mail about a replaced secret');
  const errors = await misuse(request);
  const mails = inbox.mails.flatMap(({ raw, parsed }) => [raw, String(parsed.text), String(parsed.html)]);
  const places = { 'log of the run': [before], log: [nuncio.output()], mail: mails, error: errors };
  const found: string[] = [];
  for (const [name, secret] of secrets) {
    for (const [place, texts] of Object.entries(places)) {
      const text = texts.find((each) => formsOf(secret).some((form) => each.includes(form)));
      if (text === undefined) continue;
      const at = text.search(
        formsOf(secret)
          .map((form) => RegExp.escape(form))
          .join('|'),
      );
      found.push(`${place}: ${name}: ${text.slice(Math.max(0, at - 150), at + 60)}`);
    }
    for (const table of await tablesWith(secret)) found.push(`${table}: ${name}`);
  }
  assert.deepEqual(found, []);
  assert.ok(secrets.size > 15, String(secrets.size));
  // The search finds what is there.
  assert.ok(nuncio.output().includes('mail sent') && nuncio.output().includes(account.id));
  assert.ok((await tablesWith(account.id)).length > 0);
});
