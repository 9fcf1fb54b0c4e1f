/** Attack: subscribers and authorization servers that repeat what they received. No table, page or log has a secret of the run. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { hideInBody, sentSecrets } from '../../src/webhooks/sending/echoed_secrets.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

const secretOf = (name: string) => `secret-of-${name}-${randomUUID()}`;

/** Tables with a row that contains the text, as it is or as bytes. */
async function findInDatabase(text: string): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select format('%I.%I', schemaname, tablename) as name from pg_tables
    where schemaname not in ('pg_catalog', 'information_schema')`.execute(server.db);
  const hex = Buffer.from(text).toString('hex');
  const found: string[] = [];
  for (const { name } of rows) {
    const { rows: hits } = await sql`
      select from ${sql.raw(name)} t where strpos(t::text, ${text}) > 0 or strpos(t::text, ${hex}) > 0 limit 1`.execute(
      server.db,
    );
    if (hits.length > 0) found.push(name);
  }
  return found;
}

test('attack: a response that repeats the request puts no secret into the log', async (t) => {
  const echo = await startSubscriber(t, ({ headers, body }, response) => {
    const text = JSON.stringify({ headers, body });
    response
      .writeHead(200, { 'x-echo': JSON.stringify(headers), 'content-type': 'application/json' })
      .end(text);
  });
  const token = secretOf('token');
  const issuer = await startSubscriber(t, (_received, response) => {
    const body = { access_token: token, token_type: 'Bearer', expires_in: 3_600 };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  });
  // Fails, and says in every place what it received.
  const leaky = await startSubscriber(t, ({ headers }, response) => {
    const text = JSON.stringify({ error: headers.authorization, error_description: headers.authorization });
    response.writeHead(400, { 'content-type': 'application/json' }).end(text);
  });
  const [password, key, value, client, other] = ['password', 'key', 'header', 'client', 'other'].map(
    secretOf,
  ) as [string, string, string, string, string];
  const oauth = (url: string, secret: string) => ({
    ...{ type: 'oauth2', token_url: url, client_id: 'nuncio', client_secret: secret },
  });
  const cases = [
    { auth: { type: 'basic', username: 'nuncio', password } },
    { auth: { type: 'header', name: 'X-Api-Key', value: key } },
    { headers: { 'X-Static': value } },
    { auth: oauth(issuer.url, client) },
    { auth: oauth(leaky.url, other) },
  ];
  const app = await createApp(server);
  for (const each of cases) {
    const { id } = await subscribe(app, { url: echo.url, ...each });
    await publish(publisher, app.account, [randomUUID()]);
    const { items } = await until(
      async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body,
      (body) => body.items[0]?.attempt_count > 0,
    );
    await app.request('GET', `/deliveries/${items[0].id}`);
    await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' } });
  }
  assert.ok(echo.received.length >= 4);
  const refused = await app.request('POST', '/subscriptions', {
    json: { url: echo.url, kinds: ['push'], handshake: true, auth: oauth(leaky.url, other) },
  });
  assert.equal(refused.status, 422);
  const basic = (id: string, text: string) => Buffer.from(`${id}:${text}`).toString('base64');
  const secrets = [password, key, value, token, client, other];
  const encoded = [password, client, other].map((text) => basic('nuncio', text));
  for (const secret of [...secrets, ...encoded]) {
    assert.deepEqual(await findInDatabase(secret), [], secret);
    assert.ok(!JSON.stringify(refused.body).includes(secret), secret);
  }
});

test('a secret is hidden in JSON, in bytes that are no text, and where the response is cut', () => {
  const secret = 'a"secret\\of ü bytes';
  const secrets = sentSecrets({ headerLines: `X-Key: ${secret}\r\nX-Short: 1\r\n`, auth: null }, null);
  const binary = Buffer.from([0xff, 0xfe]);
  const shown = hideInBody(
    Buffer.concat([binary, Buffer.from(`${secret}1${JSON.stringify(secret)}${secret.slice(0, 9)}`), binary]),
    false,
    secrets,
  );
  assert.deepEqual(
    shown,
    Buffer.concat([binary, Buffer.from('***1"***"'), Buffer.from(secret.slice(0, 9)), binary]),
  );
  const cut = hideInBody(Buffer.from(`1${secret.slice(0, 12)}`), true, secrets);
  assert.equal(cut?.toString(), '1***');
  assert.deepEqual(sentSecrets({ headerLines: '', auth: null }, null), []);
});
