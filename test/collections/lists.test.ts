/** Lists: pages that stay stable during changes, filters, sort orders and selected fields. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { sql } from 'kysely';
import { splitJsonArray } from '../../src/collections/cells.ts';
import { readCursor, writeCursor } from '../../src/collections/cursor.ts';
import { readResourceQuery } from '../../src/collections/query.ts';
import type { ResourceType } from '../../src/collections/resource_type.ts';
import { newId } from '../../src/crypto/ids.ts';
import { Problem } from '../../src/http/problem.ts';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { timesAsMuch } from '../support/processor_time.ts';
import { testPlatform, testScopes } from '../support/servers/platform.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after }, {}, 'dev', testPlatform);

interface Item {
  id: string;
  title: string;
  [member: string]: unknown;
}

async function everyPage(user: ApiUser, first: string, between?: () => Promise<void>): Promise<Item[]> {
  const items: Item[] = [];
  for (let path: string | undefined = first; path !== undefined; ) {
    const { status, headers, body } = await user.request('GET', path);
    assert.equal(status, 200, `${path}: ${JSON.stringify(body)}`);
    items.push(...body.items);
    const next: string | undefined = body._links.next?.href;
    assert.equal(headers.get('link'), next === undefined ? null : `<${next}>; rel="next"`);
    assert.deepEqual(body._links.self, { href: path });
    path = next;
    await between?.();
  }
  return items;
}

test('a list is newest first, 50 on a page by default and 200 at most', async () => {
  const user = await createApiUser(server);
  for (let index = 0; index < 55; index++) {
    await user.request('POST', '/articles', { json: { title: `Number ${index}` } });
  }
  const { body } = await user.request('GET', '/articles');
  assert.equal(body.items.length, 50);
  assert.equal(body.items[0].title, 'Number 54');
  assert.equal(body.items[0]._links.publish.method, 'POST');
  assert.equal((await user.request('GET', '/articles?limit=200')).body.items.length, 55);
  const all = await everyPage(user, '/articles?limit=7');
  assert.deepEqual(
    all.map((item) => item.title),
    Array.from({ length: 55 }, (_, index) => `Number ${54 - index}`),
  );
  const oldest = await everyPage(user, '/articles?limit=20&sort=created_at');
  assert.deepEqual(
    oldest.map((item) => item.title).reverse(),
    all.map((item) => item.title),
  );
});

test('a page never exceeds its limit, and the last one has no next link', async () => {
  const user = await createApiUser(server);
  for (let index = 0; index < 4; index++) await user.request('POST', '/articles', { json: { title: 'x' } });
  const { body } = await user.request('GET', '/articles?limit=4');
  assert.equal(body.items.length, 4);
  assert.equal(body._links.next, undefined);
});

test('a resource present throughout is listed exactly once while others come and go', async () => {
  const user = await createApiUser(server);
  const stays = new Set<string>();
  const goes: string[] = [];
  for (let index = 0; index < 30; index++) {
    const { body } = await user.request('POST', '/articles', { json: { title: `s${index}` } });
    if (index % 3 === 0) goes.push(body.id);
    else stays.add(body.id);
  }
  for (const order of ['-created_at', 'created_at']) {
    const seen = await everyPage(user, `/articles?limit=4&sort=${order}`, async () => {
      await user.request('POST', '/articles', { json: { title: 'new' } });
      const gone = goes.pop();
      if (gone !== undefined) await user.request('DELETE', `/articles/${gone}`);
    });
    const ids = seen.map((item) => item.id);
    assert.equal(new Set(ids).size, ids.length, 'something came twice');
    for (const id of stays) assert.ok(ids.includes(id), 'a resource is missing');
  }
});

test('a list has one’s own resources and others’ published ones in one order', async () => {
  const [ada, bob] = [await createApiUser(server), await createApiUser(server)];
  const titles: string[] = [];
  for (let index = 0; index < 12; index++) {
    const user = index % 2 === 0 ? ada : bob;
    const { body } = await user.request('POST', '/articles', { json: { title: `mixed ${index}` } });
    if (index % 4 !== 3) titles.unshift(body.title);
    if (index % 4 === 1) await user.request('POST', `/articles/${body.id}/publish`);
  }
  const all = await everyPage(ada, '/articles?limit=3');
  assert.deepEqual(
    all.map((item) => item.title).filter((title) => title.startsWith('mixed')),
    titles,
  );
});

test('a list sorts by any declared field, nulls first, ties by id', async () => {
  const user = await createApiUser(server, testScopes);
  const made: Item[] = [];
  for (let index = 0; index < 24; index++) {
    const { body } = await user.request('POST', '/bookmarks', {
      json: {
        label: ['b', 'a', 'Ä', '😀'][index % 4],
        address: 'http://x',
        rank: (index * 7) % 5,
        weight: index % 3 === 0 ? null : index % 7,
        seen_at: index % 2 === 0 ? null : `2026-01-${10 + (index % 5)}T00:00:00Z`,
      },
    });
    made.push(body);
  }
  for (const name of ['rank', 'label', 'seen_at', 'weight', 'updated_at', 'created_at']) {
    for (const order of [name, `-${name}`]) {
      const ids = (await everyPage(user, `/bookmarks?sort=${order}&limit=5`)).map((item) => item.id);
      assert.equal(ids.length, 24, order);
      assert.equal(new Set(ids).size, 24, order);
      const { rows } = await sql<{ id: string }>`
        select id from bookmarks order by ${sql.ref(name)} ${sql.raw(order === name ? 'asc nulls first' : 'desc nulls last')},
        id ${sql.raw(order === name ? 'asc' : 'desc')}`.execute(server.db);
      assert.deepEqual(
        ids,
        rows.map((row) => row.id),
        order,
      );
    }
  }
});

test('filters select alone, combined and across pages', async () => {
  const [ada, bob] = [await createApiUser(server, testScopes), await createApiUser(server, testScopes)];
  for (let index = 0; index < 12; index++) {
    const user = index % 3 === 0 ? bob : ada;
    await user.request('POST', '/bookmarks', {
      json: { label: 'f', address: 'http://x', rank: 500 + (index % 2), pinned: index % 4 === 0 },
    });
  }
  const count = async (query: string) => (await everyPage(ada, `/bookmarks?limit=2&${query}`)).length;
  assert.equal(await count('rank=500'), 6);
  assert.equal(await count(`rank=500&author=${bob.account.id}`), 2);
  assert.equal(await count(`rank=500&author=${bob.account.id.toUpperCase()}&pinned=true&sort=-label`), 1);
  assert.equal(await count('rank=777'), 0);
  const { body } = await ada.request('GET', '/articles?state=draft');
  assert.equal(body.items.length, 0);
});

test('fields selects members, and id and links are always present', async () => {
  const user = await createApiUser(server);
  const { body: made } = await user.request('POST', '/articles', { json: { title: 'Chosen' } });
  const one = await user.request('GET', `/articles/${made.id}?fields=title,state`);
  assert.deepEqual(Object.keys(one.body), ['id', 'title', 'state', '_links']);
  const list = await user.request('GET', '/articles?fields=author&limit=1');
  assert.deepEqual(Object.keys(list.body.items[0]), ['id', 'author', '_links']);
});

test('a list without the members of its order and of its links keeps pages and links', async () => {
  const user = await createApiUser(server);
  const made: string[] = [];
  for (let index = 0; index < 6; index++) {
    const { body } = await user.request('POST', '/articles', { json: { title: `t${index}`, body: 'b' } });
    made.push(body.id);
    if (index % 2 === 0) await user.request('POST', `/articles/${body.id}/publish`);
  }
  const path = `/articles?author=${user.account.id}&limit=2`;
  const all = await everyPage(user, `${path}&sort=published_at`);
  const titles = await everyPage(user, `${path}&sort=published_at&fields=title`);
  assert.deepEqual(
    titles,
    all.map(({ id, title, _links }) => ({ id, title, _links })),
  );
  assert.deepEqual(
    titles.map(({ id, _links }) => [id, Object.hasOwn(_links as object, 'publish')]),
    [1, 3, 5, 0, 2, 4].map((index) => [made[index], index % 2 === 1]),
  );
  const { body } = await user.request('GET', `${path}&state=published&fields=id`);
  assert.deepEqual(
    body.items.map((item: Item) => [item.id, Object.keys(item)]),
    [made[4], made[2]].map((id) => [id, ['id', '_links']]),
  );
});

test('an unknown or invalid parameter is 400 with its place', async () => {
  const user = await createApiUser(server, testScopes);
  const { body: made } = await user.request('POST', '/articles', { json: { title: 'x' } });
  for (const [query, pointer] of [
    ['limit=0', '/limit'],
    ['limit=201', '/limit'],
    ['limit=-1', '/limit'],
    ['limit=1e2', '/limit'],
    ['limit=', '/limit'],
    ['limit=1&limit=2', '/limit'],
    ['sort=body', '/sort'],
    ['sort=title;drop table articles', '/sort'],
    ['sort=--created_at', '/sort'],
    ['sort=id)--', '/sort'],
    ['fields=secret', '/fields'],
    ['fields=title,version', '/fields'],
    ["fields=title' or '1'='1", '/fields'],
    ['state=nothing', '/state'],
    ["state=draft' or '1'='1", '/state'],
    ['author=me', '/author'],
    ['title=x', '/title'],
    ['author%00=x', '/author\0'],
    ['author=%00', '/author'],
    ['__proto__=x', undefined],
    ['constructor=x', '/constructor'],
  ] as const) {
    const { status, body } = await user.request('GET', `/articles?${query}`);
    if (pointer === undefined) assert.ok(status === 400 || status === 200, query);
    else {
      assert.equal(status, 400, query);
      assert.equal(body.errors[0].pointer, pointer, query);
    }
  }
  assert.equal((await user.request('GET', `/articles/${made.id}?limit=1`)).status, 400);
  for (const query of [
    ...['rank=1.5', 'rank=99999999999999999999', 'rank=0x10', 'pinned=1', 'pinned=TRUE'],
    ...['weight=0x10', 'weight=1e999', 'weight= 1', 'seen_at=2026-01-01', 'seen_at=0000-01-01T00:00:00Z'],
  ]) {
    const { status, body } = await user.request('GET', `/bookmarks?${query}`);
    assert.equal(status, 400, query);
    assert.equal(body.errors[0].pointer, `/${query.split('=')[0]}`);
  }
});

test('a cursor works only for its own list, and a forged one is refused', async () => {
  const user = await createApiUser(server, testScopes);
  for (let index = 0; index < 3; index++) {
    await user.request('POST', '/bookmarks', { json: { label: `c${index}`, address: 'http://x' } });
  }
  const { body } = await user.request('GET', '/bookmarks?limit=1&sort=seen_at');
  const after = new URL(body._links.next.href, 'http://x').searchParams.get('after') as string;
  assert.equal((await user.request('GET', `/bookmarks?sort=seen_at&after=${after}`)).status, 200);
  const id = newId();
  const made = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
  for (const [sort, cursor] of [
    ['-seen_at', after],
    ['rank', after],
    ['seen_at', 'x'],
    ['seen_at', ''],
    ['seen_at', made(null)],
    ['seen_at', made({})],
    ['seen_at', made(['seen_at', id])],
    ['seen_at', made(['seen_at', id, 7])],
    ['seen_at', made(['seen_at', "' or 1=1", '2026-01-01'])],
    ['seen_at', made(['seen_at', id, 'not a time'])],
    ['seen_at', made(['seen_at', id, "2026-01-01'; drop table bookmarks; --"])],
    ['rank', made(['rank', id, '99999999999999999999999'])],
    ['label', made(['label', id, 'a\0b'])],
    ['label', made(['label', id, 'x'.repeat(7_000)])],
    ['-created_at', made(['-created_at', id, 'key'])],
  ] as const) {
    const { status } = await user.request(
      'GET',
      `/bookmarks?sort=${sort}&after=${encodeURIComponent(cursor)}`,
    );
    assert.equal(status, 400, `${sort} ${cursor}`);
  }
  // No cursor reveals a resource that the user cannot read.
  const other = await createApiUser(server, testScopes);
  const { body: secret } = await other.request('POST', '/articles', { json: { title: 'secret' } });
  const beside = made(['created_at', secret.id.replace(/.$/, '0')]);
  const { body: seen } = await user.request('GET', `/articles?sort=created_at&after=${beside}`);
  assert.ok(!JSON.stringify(seen).includes('secret'));
});

test('a cursor works with any characters in the sort key', () => {
  const place = { id: newId(), key: '\u0001'.repeat(500) };
  const order = `-${'f'.repeat(30)}`;
  assert.deepEqual(readCursor(order, true, writeCursor(order, place)), place);
});

test('no request value can end a header or a link target', async () => {
  const user = await createApiUser(server);
  for (let index = 0; index < 2; index++) await user.request('POST', '/articles', { json: { title: 'x' } });
  const { status, headers } = await user.request('GET', '/articles?limit=1&fields=%20title%20,%20state%20');
  assert.equal(status, 200);
  assert.match(headers.get('link') ?? '', /^<\/articles\?[\w=&%+.~-]+>; rel="next"$/);
  const attack = await user.request('GET', '/articles?limit=1&fields=title%0d%0aX-Evil:%201%3E');
  assert.equal(attack.status, 400);
  assert.equal(attack.headers.get('x-evil'), null);
});

test('a page is read in index order, however many rows follow', async () => {
  const user = await createApiUser(server, testScopes);
  await sql`
    insert into articles (id, author, created_at, updated_at, title, state, published_at)
    select gen_random_uuid(), ${user.account.id}, now(), now(), 'bulk ' || n, 'published', now() - n * interval '1 s'
      from generate_series(1, 20000) n`.execute(server.db);
  await sql`analyze articles`.execute(server.db);
  for (const [order, where] of [
    ['id desc', 'true'],
    [`(coalesce("published_at", '-infinity'::timestamptz)) desc, id desc`, 'true'],
    ['id desc', `state = 'draft'`],
  ] as const) {
    const others = where === 'true' ? [`("state" in ('published'::text))`] : [];
    for (const whose of [`author = '${user.account.id}'`, ...others]) {
      const { rows } = await sql<{ 'QUERY PLAN': string }>`
        explain select * from articles where ${sql.raw(`${whose} and ${where} order by ${order}`)} limit 50`.execute(
        server.db,
      );
      const plan = rows.map((row) => row['QUERY PLAN']).join('\n');
      assert.match(plan, /Index Scan/, plan);
      assert.doesNotMatch(plan, /Seq Scan/, plan);
    }
  }
});

test('resources are written as JSON.stringify writes them, with times to the millisecond', async () => {
  const user = await createApiUser(server, testScopes);
  const label = 'a "quote", \\ \b\f\n\r\t \u0001\u001f\u007f \u2028 ü 😀 </script>';
  const { status, body: made } = await user.request('POST', '/bookmarks', {
    json: {
      label,
      address: 'https://x.example/"',
      rank: -1_000,
      weight: 1e-7,
      pinned: true,
      seen_at: '0001-01-01T00:00:00Z',
      tags: ['"', 'é'],
      place: { city: '', zip: '\\' },
    },
  });
  assert.equal(status, 201, JSON.stringify(made));
  const times = [
    ['2026-03-04 05:06:07+00', '2026-03-04T05:06:07.000Z'],
    ['2026-03-04 05:06:07.1+00', '2026-03-04T05:06:07.100Z'],
    ['2026-03-04 05:06:07.129999+00', '2026-03-04T05:06:07.129Z'],
    ['1969-12-31 23:59:59.0005+00', '1969-12-31T23:59:59.000Z'],
    ['9999-12-31 23:59:59.999+00', '9999-12-31T23:59:59.999Z'],
  ];
  for (const [kept, answered] of times) {
    await sql`update bookmarks set updated_at = ${kept}::timestamptz where id = ${made.id}`.execute(
      server.db,
    );
    const one = await user.request('GET', `/bookmarks/${made.id}`);
    const list = await user.request('GET', `/bookmarks?author=${user.account.id}`);
    assert.equal(one.text, JSON.stringify(one.body));
    assert.equal(list.text, JSON.stringify(list.body));
    assert.deepEqual(list.body.items, [one.body]);
    const { label: shown, weight, seen_at, updated_at } = one.body;
    assert.deepEqual(
      [shown, weight, seen_at, updated_at],
      [label, 1e-7, '0001-01-01T00:00:00.000Z', answered],
    );
    assert.deepEqual(Object.keys(one.body), Object.keys(made));
  }
  const { body: few } = await user.request('GET', `/bookmarks/${made.id}?fields=pinned,place`);
  assert.deepEqual(few, {
    id: made.id,
    pinned: true,
    place: { city: '', zip: '\\' },
    _links: { self: { href: `/bookmarks/${made.id}` } },
  });
});

/** Characters that JSON parsers and writers must escape or split correctly, and some letters. */
const awkward = fc.constantFrom(
  ...['"', '\\', '\\"', '", "', '\\\\', ', ', '[', ']', 'null', '\n', '\t', '\u0001', '\u001e', '\u007f'],
  ...['\u2028', 'é', '😀', '\ufeff', '</script>', '\\u0041'],
);
const text = fc
  .array(fc.oneof(awkward, fc.string({ unit: 'grapheme', maxLength: 5 })), { maxLength: 8 })
  .map((parts) => parts.join(''))
  .filter((made) => made.isWellFormed() && !made.includes('\0'));

test('a list returns any text as it was stored', async () => {
  const user = await createApiUser(server);
  await fc.assert(
    fc.asyncProperty(fc.array(text, { minLength: 1, maxLength: 4 }), async (bodies) => {
      for (const body of bodies) await user.request('POST', '/articles', { json: { title: 'x', body } });
      const list = await user.request('GET', `/articles?author=${user.account.id}&limit=${bodies.length}`);
      assert.deepEqual(
        list.body.items.map((item: Item) => item.body),
        bodies.toReversed(),
      );
      assert.equal(list.text, JSON.stringify(list.body));
    }),
    { numRuns: 60 },
  );
});

test('a JSON array, also an empty one, is split into its exact values', () => {
  fc.assert(
    fc.property(
      fc.array(fc.option(fc.oneof(text, fc.integer(), fc.boolean())), { minLength: 1 }),
      (values) => {
        const pieces = values.map((value) => JSON.stringify(value));
        assert.deepEqual(splitJsonArray(`[${pieces.join(', ')}]`), pieces);
      },
    ),
  );
});

test('attack: names with thousands of spaces take little time', async () => {
  const [type] = testPlatform.collections;
  const spaces = ' '.repeat(16_000);
  assert.deepEqual(
    readResourceQuery(type as ResourceType, { fields: ' title ,  author' }).fields,
    new Set(['title', 'author']),
  );
  const read = (fillers: string) => () => {
    for (const fields of [`title${fillers}x`, `${fillers}x${fillers}`, `${fillers}?`])
      assert.throws(() => readResourceQuery(type as ResourceType, { fields }), Problem);
  };
  // With a pattern, some hundred times as much as letters.
  const ratio = await timesAsMuch(read(spaces), read('y'.repeat(spaces.length)));
  assert.ok(ratio < 30, String(ratio));
});
