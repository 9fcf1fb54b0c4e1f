/** Commands by which an operator tries and looks, beside a running server: `nuncio trigger`, `nuncio audit`. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { audit } from '../src/commands/audit.ts';
import { type Command, CommandError, UsageError } from '../src/commands/command.ts';
import { trigger } from '../src/commands/trigger.ts';
import { withdrawGrant } from '../src/grants/grant.ts';
import { createTestAccount, createTestClient, mintAccessToken } from './support/oauth.ts';
import { startTestServer } from './support/server.ts';
import { startSubscriber } from './support/subscriber.ts';
import { createApp, pushBody, subscribe } from './support/webhooks.ts';

const server = await startTestServer({ after });

/** As on the command line. */
async function run(command: Command, values: Record<string, string | boolean>, ...positionals: string[]) {
  const lines: string[] = [];
  const config = { ...server.config, databaseUrl: server.databaseUrl };
  await command.run({ values, positionals }, { config, print: (line) => lines.push(line) });
  return lines;
}

test('trigger: a subscriber of the account gets the example of the kind, or the body that was given', async (t) => {
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

test('trigger: what is no kind, no body of it, or nobody is refused, and nothing is published', async () => {
  const account = await createTestAccount(server);
  const fails = (values: Record<string, string>, kind: string, type: new () => Error, message: RegExp) =>
    assert.rejects(
      run(trigger, values, kind),
      (error) => error instanceof type && message.test(error.message),
    );
  await fails({ account: account.id }, 'nothing', UsageError, /it may be .*push/);
  await fails({ account: account.id }, 'ping', UsageError, /it may be .*push/);
  await fails({ account: account.id, body: '{' }, 'push', UsageError, /not JSON/);
  await fails({ account: account.id, body: '{}' }, 'invoice.paid', UsageError, /invoice/);
  await fails({ account: 'nobody@example.com' }, 'push', CommandError, /no account "nobody@example.com"/);
  // The demo user of development mode is not here.
  await fails({}, 'push', UsageError, /--account is required/);
  const { rows } = await sql`select from events where account_id = ${account.id}`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('audit: says who withdrew what and when, by id or address, in columns that are never empty', async () => {
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
