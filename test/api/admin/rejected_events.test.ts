/** `/admin/rejected-events` and `nuncio rejected`: who has access, what they see, retrying and discarding. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { rejectedDiscard } from '../../../src/commands/rejected_discard.ts';
import { rejectedList } from '../../../src/commands/rejected_list.ts';
import { rejectedRetry } from '../../../src/commands/rejected_retry.ts';
import { newId } from '../../../src/crypto/ids.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount } from '../../support/clients/oauth.ts';
import { consoleScopes, createConsoleUser } from '../../support/console/console_user.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, pushBody, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const admin = await createConsoleUser(server, { isAdmin: true });

/** Publishes an invalid event. @returns its rejected event */
// biome-ignore lint/suspicious/noExplicitAny: tests inspect any response
async function reject(account: string, body: unknown, kind = 'push'): Promise<any> {
  await sql`select publish(${kind}, ${account}, ${JSON.stringify(body)}::jsonb)`.execute(db);
  const { rows } = await until(
    () => sql<{ id: string }>`select id from rejected_events where account = ${account}`.execute(db),
    (found) => found.rows.length > 0,
  );
  return (await admin.request('GET', `/admin/rejected-events/${rows[0]?.id}`)).body;
}

test('a rejected event is shown with its reason, corrected and delivered', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const bad = await reject(app.account.id, { ref: 7, commits: [], repository: { name: 'x' } });
  assert.equal(bad.kind, 'push');
  assert.equal(bad.account, app.account.id);
  assert.equal(bad.errors[0].pointer, '/body/ref');
  assert.deepEqual(JSON.parse(bad.body_json).ref, 7);
  const listed = await admin.request('GET', '/admin/rejected-events?limit=1');
  assert.equal(listed.body.items[0].id, bad.id);
  assert.equal(listed.body.items[0].body_json, undefined);
  const retry = bad._links.retry.href;
  const again = await admin.request('POST', retry, { json: {} });
  assert.deepEqual(
    [again.status, again.body.errors[0].pointer],
    [422, '/body/ref'],
    'the unchanged event is rejected again',
  );
  for (const [json, pointer] of [
    [{ body: { ref: 8 } }, '/body'],
    [{ kind: 'ping', body: {} }, '/kind'],
    [{ kind: '' }, '/kind'],
    [{ account: 7 }, '/account'],
    [{ account: 'a\u0000b' }, '/account'],
    [{ account: 'x'.repeat(256) }, '/account'],
    [{ id: 'other' }, '/id'],
    [[], ''],
  ] as const) {
    const { status, body } = await admin.request('POST', retry, { json });
    assert.equal(status, 422, JSON.stringify(json));
    assert.ok(body.errors[0].pointer.startsWith(pointer), JSON.stringify(body));
  }
  const done = await admin.request('POST', retry, { json: { body: pushBody('corrected') } });
  assert.deepEqual([done.status, done.body], [202, { id: bad.event }]);
  const [received] = await subscriber.waitFor(1);
  assert.match(received?.body ?? '', /corrected/);
  assert.equal((await admin.request('POST', retry, { json: {} })).status, 404, 'it is an event now');
  assert.equal((await admin.request('GET', bad._links.self.href)).status, 404);
  const audit = await admin.request('GET', '/admin/audit?kind=rejected_event.');
  assert.equal(audit.body.items[0].actor, admin.account.id);
  assert.deepEqual(audit.body.items[0].details, { event: bad.event, kind: 'push', corrected: ['body'] });
});

test('a rejected event is discarded once', async () => {
  const { id } = await createTestAccount(server);
  const bad = await reject(id, {});
  assert.equal((await admin.request('DELETE', bad._links.self.href)).status, 204);
  assert.equal((await admin.request('DELETE', bad._links.self.href)).status, 404);
  assert.equal((await sql`select from events where account_id = ${id}`.execute(db)).rows.length, 0);
});

test('two concurrent retries by administrators create one event', async () => {
  const { id } = await createTestAccount(server);
  const bad = await reject(id, {});
  const answers = await Promise.all(
    Array.from({ length: 5 }, () =>
      admin.request('POST', bad._links.retry.href, { json: { body: pushBody() } }),
    ),
  );
  assert.deepEqual(answers.map((one: { status: number }) => one.status).sort(), [202, 404, 404, 404, 404]);
  assert.equal((await sql`select from events where account_id = ${id}`.execute(db)).rows.length, 1);
});

test('only administrators see or change rejected events', async () => {
  const { id } = await createTestAccount(server);
  const bad = await reject(id, {});
  const developer = await createConsoleUser(server);
  const liar = await createConsoleUser(server, { scopes: [...consoleScopes, 'admin'] });
  const app = await createApp(server);
  // Neither the account of the event nor a client that publishes has access.
  const owner = await createApp(server, { account: { id } });
  const others = [developer.request, liar.request, app.request, owner.request];
  for (const request of [...others, await createPublisher(server), requester(server)]) {
    for (const [method, path] of [
      ['GET', '/admin/rejected-events'],
      ['GET', bad._links.self.href],
      ['POST', bad._links.retry.href],
      ['DELETE', bad._links.self.href],
    ] as const) {
      const { status, text } = await request(method, path);
      assert.ok(status === 403 || status === 401, `${method} ${path} gave ${status}`);
      assert.doesNotMatch(text, new RegExp(bad.event));
    }
  }
  for (const other of [newId(), 'x', bad.id.toUpperCase(), '%00']) {
    assert.equal((await admin.request('GET', `/admin/rejected-events/${other}`)).status, 404, other);
    assert.equal((await admin.request('DELETE', `/admin/rejected-events/${other}`)).status, 404, other);
  }
  assert.equal((await admin.request('GET', bad._links.self.href)).status, 200);
});

test('an endlessly nested body can be read and discarded', async () => {
  const { id } = await createTestAccount(server);
  await sql`select publish('push', ${id}, ${`${'['.repeat(5_000)}${']'.repeat(5_000)}`}::jsonb)`.execute(db);
  const { rows } = await until(
    () =>
      sql<{
        id: string;
        reason: string;
      }>`select id, reason from rejected_events where account = ${id}`.execute(db),
    (found) => found.rows.length > 0,
  );
  assert.match(rows[0]?.reason ?? '', /nested/);
  const path = `/admin/rejected-events/${rows[0]?.id}`;
  assert.equal((await admin.request('GET', path)).status, 200);
  assert.equal((await admin.request('DELETE', path)).status, 204);
});

test('publishing resumes when enough rejected events are discarded', async () => {
  const { id } = await createTestAccount(server);
  const bad = await reject(id, {});
  await sql`update intake set is_blocked = true`.execute(db);
  await assert.rejects(sql`select publish('push', ${id}, '{}')`.execute(db), /too many rejected events/);
  await admin.request('DELETE', bad._links.self.href);
  await sql`select publish('push', ${id}, '{}')`.execute(db);
});

test('the commands list, retry and discard rejected events', async () => {
  const config = { ...server.config, databaseUrl: server.databaseUrl };
  const run = async (command: typeof rejectedList, values: Record<string, string | boolean>) => {
    const lines: string[] = [];
    await command.run(
      { values, positionals: [] },
      { config, print: (line) => lines.push(line), printError: () => {} },
    );
    return lines.join('\n');
  };
  const [one, two] = [await createTestAccount(server), await createTestAccount(server)];
  const first = await reject(one.id, {});
  const second = await reject(two.id, {});
  assert.match(
    await run(rejectedList, {}),
    new RegExp(`${second.id} .* push ${second.event} of "${two.id}": /body`),
  );
  const listed = JSON.parse(await run(rejectedList, { json: true }));
  assert.equal(listed[0].id, second.id);
  await assert.rejects(run(rejectedRetry, {}), /rejected again/);
  await assert.rejects(run(rejectedRetry, { id: first.id }), /rejected again/);
  await assert.rejects(run(rejectedRetry, { id: newId() }), /rejected event \S+ not found/);
  await assert.rejects(run(rejectedRetry, { body: '{}' }), /--body requires --id/);
  await assert.rejects(run(rejectedRetry, { id: first.id, body: '{' }), /must be JSON/);
  const body = JSON.stringify(pushBody());
  assert.match(await run(rejectedRetry, { id: first.id, body }), /1 event was accepted/);
  assert.match(await run(rejectedDiscard, { id: second.id }), /^discarded /);
  await assert.rejects(run(rejectedDiscard, { id: second.id }), /rejected event \S+ not found/);
  assert.equal((await sql`select from events where account_id = ${one.id}`.execute(db)).rows.length, 1);
});
