/** Filters of subscriptions: what fan-out and recovery leave out, and who can set them. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { builtInNames } from '../../../src/events/built_in_names.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);

const startsWith = (text: string) => ({ all: [{ path: '/ref', prefix: `refs/heads/${text}` }] });

async function refsOf(app: App, id: string): Promise<[number, string][]> {
  const { body } = await app.request('GET', `/subscriptions/${id}/events?limit=1000`);
  return body.items.map((item: { sequence: number; body: { ref: string } }) => [
    item.sequence,
    item.body.ref?.slice('refs/heads/'.length),
  ]);
}

test('an event that does not meet the filter takes no sequence number and is not sent', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id, filter } = await subscribe(app, {
    url: subscriber.url,
    kinds: ['push'],
    filter: startsWith('release'),
  });
  assert.deepEqual(filter, startsWith('release'));
  const all = await subscribe(app, { url: null, kinds: ['push'] });
  await publish(publisher, app.account, ['release-1', 'main', 'release-2', 'topic', 'release-3']);
  await subscriber.waitFor(3);
  await fannedOut(server);
  assert.deepEqual(await refsOf(app, id), [
    [1, 'release-1'],
    [2, 'release-2'],
    [3, 'release-3'],
  ]);
  assert.equal((await refsOf(app, all.id)).length, 5);
  assert.equal(subscriber.received.length, 3);
});

test('a change of the filter applies to events that are published afterwards', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: null, kinds: ['push'], filter: startsWith('a') });
  const path = `/subscriptions/${id}`;
  await publish(publisher, app.account, ['a1', 'b1']);
  await fannedOut(server);
  const changed = await app.request('PATCH', path, { json: { filter: { any: startsWith('b').all } } });
  assert.deepEqual(changed.body.filter, { any: startsWith('b').all });
  await publish(publisher, app.account, ['a2', 'b2']);
  await fannedOut(server);
  assert.equal((await app.request('PATCH', path, { json: { filter: null } })).body.filter, null);
  await publish(publisher, app.account, ['a3']);
  await fannedOut(server);
  assert.deepEqual(await refsOf(app, id), [
    [1, 'a1'],
    [2, 'b2'],
    [3, 'a3'],
  ]);
});

test('test events pass every filter, and a recovery adds only what meets it', async () => {
  const app = await createApp(server);
  await publish(publisher, app.account, ['old-yes', 'no', 'old-yes-2']);
  await fannedOut(server);
  const { id: accountId } = app.account;
  await sql`update events set created_at = created_at - interval '1 hour' where account_id = ${accountId}`.execute(
    db,
  );
  await sql`update grants set created_at = created_at - interval '2 hours' where account_id = ${accountId}`.execute(
    db,
  );
  const { id } = await subscribe(app, { url: null, kinds: ['push'], filter: startsWith('old') });
  const path = `/subscriptions/${id}`;
  assert.equal((await app.request('POST', `${path}/test`, { json: { kind: 'push' } })).status, 202);
  const since = new Date(Date.now() - 7_200_000).toISOString();
  const started = await app.request('POST', `${path}/recover`, { json: { since } });
  await until(
    async () => (await app.request('GET', started.headers.get('location') as string)).body.state,
    (state) => state === 'done',
  );
  const refs = await refsOf(app, id);
  assert.deepEqual(refs.slice(1), [
    [2, 'old-yes'],
    [3, 'old-yes-2'],
  ]);
});

test('a stored body that PostgreSQL cannot read as JSON meets no filter, and the others are delivered', async () => {
  const app = await createApp(server);
  const filtered = await subscribe(app, { url: null, kinds: ['push'], filter: startsWith('') });
  const all = await subscribe(app, { url: null, kinds: ['push'] });
  const body = { ref: 'refs/heads/\u0000', commits: [], repository: { name: 'example' } };
  const event = { kind: 'push', account: app.account.id, body };
  const { status } = await publisher('POST', '/events', { json: [event] });
  await publish(publisher, app.account, ['next']);
  await fannedOut(server);
  assert.deepEqual(await refsOf(app, filtered.id), [[1, 'next']]);
  assert.equal((await refsOf(app, all.id)).length, status === 202 ? 2 : 1);
});

test('filters that cannot be evaluated or are too large are refused with their place', async () => {
  const app = await createApp(server);
  const many = (count: number) => Array.from({ length: count }, () => ({ path: '/ref', eq: 'x' }));
  for (const [filter, pointer] of [
    [{ all: [{ path: '/missing', eq: 'x' }] }, '/filter/all/0/path'],
    [{ any: [{ not: { path: '/ref', eq: 7 } }] }, '/filter/any/0/not/eq'],
    [{ all: [{ path: '/__proto__/polluted', exists: true }] }, '/filter/all/0/path'],
    [{ all: many(11) }, '/filter'],
    [{ all: [] }, '/filter'],
    [{ all: many(1), any: many(1) }, '/filter'],
    [{}, '/filter'],
    [[], '/filter'],
    ['/ref', '/filter'],
    [{ all: [{ path: '/ref', in: Array.from({ length: 101 }, () => 'x') }] }, '/filter'],
    [{ all: [{ path: '/ref', eq: 'x'.repeat(1_001) }] }, '/filter'],
    [{ all: [{ path: `/${'x/'.repeat(200)}`, exists: true }] }, '/filter'],
    [{ all: [{ path: '/ref' }] }, '/filter'],
    [{ all: [{ path: '/ref', eq: 'x', prefix: 'x' }] }, '/filter'],
    [{ all: [{ path: '/ref', like_regex: '(a+)+$' }] }, '/filter'],
    [{ all: [{ not: { not: { path: '/ref', eq: 'x' } } }] }, '/filter'],
    [{ all: [{ path: '/ref', eq: { deep: true } }] }, '/filter'],
  ] as const) {
    const json = { url: null, kinds: ['push'], filter };
    const { status, body } = await app.request('POST', '/subscriptions', { json });
    assert.equal(status, 422, JSON.stringify(filter));
    const places = body.errors.map((error: { pointer: string }) => error.pointer);
    assert.ok(
      places.every((place: string) => place.startsWith(pointer)),
      `${JSON.stringify(filter)}: ${places}`,
    );
    for (const { code, message } of body.errors) {
      assert.match(code, /filter/, `${JSON.stringify(filter)}: ${message} has a code`);
    }
    assert.equal(body.code, body.errors[0].code);
  }
  const ofLength = (length: number) => ({
    all: Array.from({ length: 10 }, () => ({
      path: '/ref',
      in: Array.from({ length: 100 }, (_each, index) => `${index}-${'x'.repeat(length)}`),
    })),
  });
  assert.ok((await subscribe(app, { url: null, kinds: ['push'], filter: ofLength(50) })).id);
  for (const path of ['/subscriptions', '/event-kinds/push/match']) {
    const fields = path === '/subscriptions' ? { url: null, kinds: ['push'] } : {};
    const { status, body } = await app.request('POST', path, { json: { ...fields, filter: ofLength(70) } });
    assert.deepEqual([status, body.errors[0].pointer], [422, '/filter'], path);
    assert.equal(body.code, 'filter-too-large', path);
  }
});

test('the filter must fit the kinds, whichever of the two changes', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: null, kinds: ['push'], filter: startsWith('a') });
  const path = `/subscriptions/${id}`;
  const kinds = await app.request('PATCH', path, { json: { kinds: ['*'] } });
  assert.equal(kinds.status, 422);
  assert.equal(kinds.body.errors[0].pointer, '/filter/all/0/path');
  assert.equal((await app.request('PATCH', path, { json: { description: 'same' } })).status, 200);
  const both = await app.request('PATCH', path, { json: { kinds: ['*'], filter: null } });
  assert.equal(both.status, 200);
  const builtIn = await app.request('PATCH', path, { json: { kinds: ['ping'], filter: startsWith('a') } });
  assert.deepEqual([builtIn.status, builtIn.body.errors[0].pointer], [422, '/filter']);
  assert.equal(builtIn.body.code, 'filter-kind');
  const { body: catalogue } = await app.request('GET', '/event-kinds');
  const names = catalogue.items.filter((kind: { built_in: boolean }) => kind.built_in);
  assert.deepEqual(
    names.map(({ name }: { name: string }) => name),
    builtInNames,
  );
});

test('a filter can be tried before it is used', async () => {
  const app = await createApp(server);
  const match = (json: unknown, kind = 'push') => app.request('POST', `/event-kinds/${kind}/match`, { json });
  const body = { ref: 'refs/heads/main' };
  const exists = { all: [{ path: '/ref', exists: true }] };
  for (const [asked, matches] of [
    [{ filter: startsWith('main'), body }, true],
    [{ filter: startsWith('other'), body }, false],
    [{ filter: exists }, true],
    [{ filter: exists, body: null }, false],
  ] as const) {
    assert.deepEqual((await match(asked)).body, { matches, conditions: [matches] });
  }
  const list = [
    { path: '/ref', eq: 'x' },
    { not: { path: '/ref', eq: 'x' } },
    { path: '/repository/name', exists: true },
    { path: '/ref', in: ['y', 'refs/heads/main'] },
  ];
  const conditions = [false, true, false, true];
  assert.deepEqual((await match({ filter: { all: list }, body })).body, { matches: false, conditions });
  assert.deepEqual((await match({ filter: { any: list }, body })).body, { matches: true, conditions });
  assert.equal((await match({ filter: startsWith('main') }, 'unknown')).status, 404);
  assert.equal((await match({ filter: { all: [{ path: '/no', exists: true }] } })).status, 422);
});

test('attack: a filter is tried with a body as large as an event can have, and no larger', async () => {
  const app = await createApp(server);
  const tryBody = async (bytes: number) => {
    // Bodies of many short values take PostgreSQL and the thread longest.
    const frame = { ref: 'refs/heads/main', values: [] as number[], rest: '' };
    frame.values = Array.from({ length: Math.floor(bytes / 4) }, () => 0);
    frame.rest = 'x'.repeat(bytes - JSON.stringify(frame).length);
    const json = { filter: startsWith('main'), body: frame };
    const { status, body } = await app.request('POST', '/event-kinds/push/match', { json });
    return [status, body.code ?? body.matches];
  };
  assert.deepEqual(await tryBody(262_144), [200, true]);
  assert.deepEqual(await tryBody(262_145), [413, 'event-too-large']);
  assert.deepEqual(await tryBody(1_000_000), [413, 'body-too-large']);
});

test('many subscriptions with the same filter evaluate it once for each event', async () => {
  const app = await createApp(server);
  const ids: string[] = [];
  for (let index = 0; index < 20; index += 1) {
    ids.push((await subscribe(app, { url: null, kinds: ['push'], filter: startsWith(`f${index % 2}`) })).id);
  }
  const { rows } = await sql<{ count: number }>`
    select count(distinct filter_digest)::int as count from subscriptions where account_id = ${app.account.id}`.execute(
    db,
  );
  assert.equal(rows[0]?.count, 2);
  await publish(publisher, app.account, ['f0', 'f1', 'f2']);
  await fannedOut(server);
  for (const [index, id] of ids.entries()) assert.deepEqual(await refsOf(app, id), [[1, `f${index % 2}`]]);
});
