/** Collections with other fields and actions than articles. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createApiUser } from '../support/clients/api_client.ts';
import { testPlatform, testScopes } from '../support/servers/platform.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after }, {}, 'dev', testPlatform);
const ada = await createApiUser(server, testScopes);
const bob = await createApiUser(server, testScopes);

test('a field of every type is returned unchanged', async () => {
  const json = {
    label: 'It’s "quoted" \\ 😀',
    address: 'https://example.org/',
    rank: -7,
    weight: 0.1,
    pinned: true,
    seen_at: '2026-02-03T04:05:06.789+02:00',
    tags: ['a', 'b'],
    device: '0190ca2c-8b3e-7f01-9c5a-5a1c3f9b2d4e',
    place: { city: 'Bern', zip: '3000' },
  };
  const { status, body } = await ada.request('POST', '/bookmarks', { json });
  assert.equal(status, 201, JSON.stringify(body));
  const { id, author, created_at, updated_at, _links, ...rest } = body;
  assert.deepEqual(rest, { ...json, seen_at: '2026-02-03T02:05:06.789Z' });
  assert.equal(author, ada.account.id);
  assert.deepEqual(_links, { self: { href: `/bookmarks/${id}` } });
  assert.ok(created_at === updated_at);
  assert.deepEqual((await bob.request('GET', `/bookmarks/${id}`)).body, body);
  assert.equal((await bob.request('DELETE', `/bookmarks/${id}`)).status, 403);
});

test('an omitted field gets its default or null', async () => {
  const { body } = await ada.request('POST', '/bookmarks', { json: { label: 'x', address: 'http://x' } });
  const { rank, weight, pinned, seen_at, tags, device, place } = body;
  assert.deepEqual(
    { rank, weight, pinned, seen_at, tags, device, place },
    {
      rank: 0,
      weight: null,
      pinned: false,
      seen_at: null,
      tags: [],
      device: null,
      place: null,
    },
  );
});

test('a value that does not fit is 422 with its place, never 500', async () => {
  const good = { label: 'x', address: 'http://x' };
  for (const [member, pointer] of [
    [{ rank: 1.5 }, '/rank'],
    [{ rank: 1e15 }, '/rank'],
    [{ rank: '1' }, '/rank'],
    [{ weight: -1 }, '/weight'],
    [{ pinned: 'yes' }, '/pinned'],
    [{ pinned: null }, '/pinned'],
    [{ seen_at: 'yesterday' }, '/seen_at'],
    [{ seen_at: '2026-02-30T00:00:00Z' }, '/seen_at'],
    [{ seen_at: '0000-01-01T00:00:00Z' }, '/seen_at'],
    [{ seen_at: '2026-06-30T23:59:60Z' }, undefined],
    [{ tags: ['a', ''] }, '/tags/1'],
    [{ tags: { a: 1 } }, '/tags'],
    [{ device: 'urn:uuid:0190ca2c-8b3e-7f01-9c5a-5a1c3f9b2d4e' }, '/device'],
    [{ device: '0190ca2c8b3e7f019c5a5a1c3f9b2d4e' }, '/device'],
    [{ place: {} }, undefined],
    [{ address: 'ftp://x' }, '/address'],
  ] as const) {
    const { status, body } = await ada.request('POST', '/bookmarks', { json: { ...good, ...member } });
    if (pointer === undefined) assert.ok(status < 500, JSON.stringify(member));
    else {
      assert.equal(status, 422, `${JSON.stringify(member)}: ${JSON.stringify(body)}`);
      assert.ok(
        body.errors.some((error: { pointer: string }) => error.pointer === pointer),
        JSON.stringify(body),
      );
    }
  }
});

test('an integer that is not exactly representable is 422', async () => {
  const post = (count: string) =>
    ada.request('POST', '/tickets', {
      raw: `{"subject":"x","count":${count}}`,
      headers: { 'content-type': 'application/json' },
    });
  for (const count of ['1e300', '-1e19', '9007199254740992']) {
    const { status, body } = await post(count);
    assert.equal(status, 422, count);
    assert.equal(body.errors[0].pointer, '/count');
  }
  const { body: most } = await post('9007199254740991');
  assert.equal(most.count, Number.MAX_SAFE_INTEGER);
  assert.deepEqual((await ada.request('GET', `/tickets/${most.id}`)).body, most);
  assert.equal((await ada.request('GET', '/tickets')).body.items[0].count, Number.MAX_SAFE_INTEGER);
});

test('negative zero is stored as zero', async () => {
  const { body } = await ada.request('POST', '/bookmarks', {
    json: { label: 'x', address: 'http://x', weight: 0 },
  });
  const tag = (await ada.request('GET', `/bookmarks/${body.id}`)).headers.get('etag');
  const patched = await ada.request('PATCH', `/bookmarks/${body.id}`, {
    raw: '{"rank":-0,"weight":-0.0}',
    headers: { 'content-type': 'application/merge-patch+json' },
  });
  assert.equal(patched.status, 200, patched.text);
  assert.equal(patched.headers.get('etag'), tag);
  assert.deepEqual(patched.body, body);
});

test('a changing request accepts no query parameters', async () => {
  const { body } = await ada.request('POST', '/tickets', { json: { subject: 'Help' } });
  const path = `/tickets/${body.id}`;
  for (const [method, url, json] of [
    ['POST', '/tickets?fields=subject', { subject: 'x' }],
    ['POST', `${path}/notes?expand=ticket`, { text: 'x' }],
    ['PUT', `${path}?fields=subject`, { subject: 'x' }],
    ['PATCH', `${path}?subject=x`, {}],
    ['POST', `${path}/close?answer=x`, {}],
    ['DELETE', `${path}?force=true`, undefined],
  ] as const) {
    const refused = await ada.request(method, url, json === undefined ? {} : { json });
    assert.equal(refused.status, 400, `${method} ${url}`);
    assert.equal(refused.body.errors[0].message, 'is not a parameter of this request');
  }
  assert.deepEqual((await ada.request('GET', path)).body, body);
});

test('a create-only field stays, and nested members merge', async () => {
  const { body } = await ada.request('POST', '/bookmarks', {
    json: { label: 'x', address: 'http://x', place: { city: 'Bern', zip: '3000' }, weight: 2 },
  });
  const path = `/bookmarks/${body.id}`;
  assert.equal((await ada.request('PATCH', path, { json: { address: 'http://y' } })).status, 422);
  assert.equal((await ada.request('PATCH', path, { json: { address: 'http://x' } })).status, 200);
  const merged = await ada.request('PATCH', path, { json: { place: { zip: null }, weight: null } });
  assert.deepEqual(merged.body.place, { city: 'Bern' });
  assert.equal(merged.body.weight, null);
  const replaced = await ada.request('PUT', path, { json: { label: 'y' } });
  assert.equal(replaced.status, 200);
  assert.equal(replaced.body.address, 'http://x');
  assert.equal(replaced.body.place, null);
});

test('two actions implement a state machine', async () => {
  const { body } = await ada.request('POST', '/tickets', { json: { subject: 'Help' } });
  const path = `/tickets/${body.id}`;
  assert.deepEqual(Object.keys(body._links), ['self', 'notes', 'wait', 'close']);
  assert.deepEqual([body.owner, body.sort_key, body.author], ['nobody', 'k', ada.account.id]);
  const list = await ada.request('GET', '/tickets?sort=-owner');
  assert.deepEqual(list.body.items[0], body);
  assert.equal((await bob.request('GET', path)).status, 404);
  const waiting = await ada.request('POST', `${path}/wait`);
  assert.deepEqual(Object.keys(waiting.body._links), ['self', 'notes', 'close']);
  assert.equal((await ada.request('POST', `${path}/wait`)).status, 409);
  assert.equal((await ada.request('POST', `${path}/close`, { json: { answer: '' } })).status, 422);
  assert.equal((await ada.request('POST', `${path}/close`, { json: { state: 'open' } })).status, 422);
  const closed = await ada.request('POST', `${path}/close`, { json: { answer: 'Turn the key.' } });
  assert.equal(closed.status, 200);
  assert.equal(closed.body.state, 'closed');
  assert.equal(closed.body.answer, 'Turn the key.');
  assert.match(closed.body.closed_at, /Z$/);
  const again = await ada.request('POST', `${path}/close`);
  assert.equal(again.status, 409);
  assert.equal(again.body.detail, 'The ticket is closed.');
  const { rows } = await sql<{ kind: string }>`
    select kind from events where body like ${`%${body.id}%`}`.execute(server.db);
  assert.deepEqual(rows, [{ kind: 'ticket.closed' }]);
});

test('only the owner adds to a sub-collection that says so', async () => {
  const { body } = await ada.request('POST', '/tickets', { json: { subject: 'Help' } });
  const path = `/tickets/${body.id}/notes`;
  assert.equal((await ada.request('POST', path, { json: { text: 'Mine' } })).status, 201);
  assert.equal((await bob.request('POST', path, { json: { text: 'Theirs' } })).status, 404);
  assert.equal((await ada.request('POST', path, { json: {} })).status, 422);
});

test('scopes follow from the object', async () => {
  const reader = await createApiUser(server, ['read:links']);
  assert.equal((await reader.request('GET', '/bookmarks')).status, 200);
  assert.equal((await reader.request('GET', '/tickets')).status, 403);
  const { body } = await reader.request('GET', '/api');
  assert.deepEqual(Object.keys(body._links), ['self', 'bookmarks']);
});
