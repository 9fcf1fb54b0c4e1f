/** The tools of collections: what is listed, and that they do what the API does. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import shipped from '../../../nuncio.config.ts';
import { defineChild, defineCollection, Type } from '../../../src/index.ts';
import { createPlatform, type PlatformDeclaration } from '../../../src/platform.ts';
import { callMcp, callTool, mcpToken } from '../../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { bookmarks, tickets } from '../../support/servers/platform.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const platform = createPlatform({
  collections: [...(shipped.collections ?? []), bookmarks, tickets],
  mcp: { enabled: true },
});
const server = await startTestServer({ after }, {}, 'dev', platform);
const account = await createTestAccount(server);
const other = await createTestAccount(server);
const client = await createTestClient(server);
const scopes = ['posts', 'links', 'tickets'].flatMap((object) => [`read:${object}`, `write:${object}`]);
const { accessToken: token, grantId } = await mcpToken(server, { account, client, scopes });
const { accessToken: otherToken } = await mcpToken(server, { account: other, client, scopes });

interface Listed {
  name: string;
  title: string;
  description: string;
  inputSchema: { type: string; properties: Record<string, object>; required?: string[] };
  outputSchema: object;
  annotations: Record<string, boolean>;
}

async function listTools(): Promise<Listed[]> {
  return (await callMcp(server, token, 'tools/list')).body.result.tools;
}

/** A token of the same grant for the API. */
async function apiToken(): Promise<string> {
  const options = { account, client, scopes: [...scopes, 'write:webhooks'], grantId: grantId as string };
  return (await mintAccessToken(server, options)).accessToken;
}

async function atApi(path: string, init: RequestInit = {}) {
  const headers = { authorization: `Bearer ${await apiToken()}`, 'content-type': 'application/json' };
  return fetch(server.baseUrl + path, { ...init, headers: { ...headers, ...init.headers } });
}

test('agents 14: the order of the list is stable, and its pages have cursors', async (context) => {
  assert.deepEqual(await listTools(), await listTools());
  const many = Array.from({ length: 25 }, (_, index) =>
    defineCollection({
      name: `things${index}`,
      item: `thing${index}`,
      scope: 'things',
      fields: { label: Type.String({ maxLength: 10 }) },
      example: { label: 'One' },
    }),
  );
  const large = await startTestServer(
    context,
    {},
    'dev',
    createPlatform({ collections: many, mcp: { enabled: true } }),
  );
  const user = await createTestAccount(large);
  const app = await createTestClient(large);
  const { accessToken } = await mcpToken(large, {
    account: user,
    client: app,
    scopes: ['read:things', 'write:things'],
  });
  const names: string[] = [];
  let pages = 0;
  for (let cursor: string | undefined, first = true; first || cursor !== undefined; first = false) {
    const { body } = await callMcp(large, accessToken, 'tools/list', cursor === undefined ? {} : { cursor });
    names.push(...body.result.tools.map(({ name }: Listed) => name));
    cursor = body.result.nextCursor;
    pages += 1;
    assert.deepEqual([body.result.ttlMs, body.result.cacheScope], [60_000, 'private']);
  }
  assert.equal(pages, 2);
  assert.equal(new Set(names).size, 25 * 5);
  assert.equal(names.length, 25 * 5);
  for (const cursor of ['nonsense', '', 5, {}]) {
    const { status, body } = await callMcp(large, accessToken, 'tools/list', { cursor });
    assert.deepEqual([status, body.error.code], [200, -32_602]);
  }
});

test('agents 15, 75: each operation is a tool, named after the collection', async () => {
  const tools = await listTools();
  assert.deepEqual(
    tools.map(({ name }) => name),
    [
      'articles_list',
      'article_get',
      'article_create',
      'article_update',
      'article_delete',
      'article_publish',
      'article_comments_list',
      'article_comments_create',
      'bookmarks_list',
      'bookmark_get',
      'bookmark_create',
      'bookmark_update',
      'bookmark_delete',
      'tickets_list',
      'ticket_get',
      'ticket_create',
      'ticket_update',
      'ticket_delete',
      'ticket_wait',
      'ticket_close',
      'ticket_notes_list',
      'ticket_notes_create',
    ],
  );
  for (const { name, title, description } of tools) {
    assert.match(name, /^[a-z0-9_]{1,64}$/);
    assert.ok(title.length > 3 && description.length > 10, name);
  }
});

test('agents 15: schemas are complete objects that accept nothing unknown', async () => {
  for (const { name, inputSchema, outputSchema } of await listTools()) {
    assert.equal(inputSchema.type, 'object', name);
    assert.equal((inputSchema as { additionalProperties?: boolean }).additionalProperties, false, name);
    assert.doesNotMatch(JSON.stringify([inputSchema, outputSchema]), /\$ref/);
    const ajv = new Ajv({ strict: false });
    addFormats.default(ajv);
    ajv.compile(inputSchema);
    ajv.compile(outputSchema);
  }
});

test('agents 16, 75: annotations are explicit, and no tool both reads and writes', async () => {
  for (const { name, annotations } of await listTools()) {
    const reads = /_(list|get)$/.test(name);
    assert.deepEqual(
      annotations,
      { readOnlyHint: reads, destructiveHint: name.endsWith('_delete'), openWorldHint: false },
      name,
    );
  }
});

test('agents 76: arguments are the writable fields, the id and the options of an operation', async () => {
  const tools = new Map((await listTools()).map((tool) => [tool.name, tool.inputSchema]));
  const argumentsOf = (name: string) => Object.keys(tools.get(name)?.properties ?? {}).sort();
  assert.deepEqual(argumentsOf('article_create'), ['body', 'idempotency_key', 'title']);
  assert.deepEqual(tools.get('article_create')?.required, ['title']);
  assert.deepEqual(argumentsOf('article_update'), ['body', 'id', 'if_match', 'title']);
  assert.deepEqual(argumentsOf('article_delete'), ['id', 'if_match']);
  assert.deepEqual(argumentsOf('article_publish'), ['id', 'idempotency_key', 'if_match']);
  assert.deepEqual(argumentsOf('ticket_close'), ['answer', 'id', 'idempotency_key', 'if_match']);
  assert.deepEqual(argumentsOf('articles_list'), ['after', 'author', 'limit', 'sort', 'state']);
  assert.deepEqual(argumentsOf('article_comments_create'), ['body', 'id', 'idempotency_key']);
  assert.ok(!argumentsOf('bookmark_update').includes('address'), 'a field that never changes');
});

test('agents 16, 76: results are the resources of the API, valid by the output schemas', async () => {
  const tools = new Map((await listTools()).map((tool) => [tool.name, tool.outputSchema]));
  const ajv = new Ajv({ strict: false });
  addFormats.default(ajv);
  const call = async (name: string, given: Record<string, unknown>) => {
    const result = await callTool(server, token, name, given);
    assert.equal(result.isError, undefined, result.content[0].text);
    assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
    assert.ok(
      ajv.validate(tools.get(name) as object, result.structuredContent),
      `${name}: ${ajv.errorsText()}`,
    );
    return result.structuredContent;
  };
  const made = await call('article_create', { title: 'A title' });
  const shown = await atApi(`/articles/${made.id}`);
  const { _links, ...resource } = (await shown.json()) as Record<string, unknown>;
  const { _etag: tag, ...members } = made;
  assert.deepEqual(members, resource);
  assert.equal(tag, shown.headers.get('etag'));
  assert.deepEqual(await call('article_get', { id: made.id }), made);
  const changed = await call('article_update', { id: made.id, body: 'Text', if_match: tag });
  assert.deepEqual([changed.title, changed.body], ['A title', 'Text']);
  assert.equal((await call('article_publish', { id: made.id })).state, 'published');
  const comment = await call('article_comments_create', { id: made.id, body: 'Well said.' });
  const comments = await call('article_comments_list', { id: made.id });
  assert.deepEqual(
    comments.items.map(({ id }: { id: string }) => id),
    [comment.id],
  );
  const bookmark = await call('bookmark_create', { label: 'A', address: 'https://a.example', weight: 0.5 });
  assert.deepEqual([bookmark.rank, bookmark.tags, bookmark.place], [0, [], null]);
  await call('bookmark_update', { id: bookmark.id, place: { city: 'Bern', zip: '3000' } });
  const moved = await call('bookmark_update', {
    id: bookmark.id,
    place: { city: 'Basel', zip: null },
    weight: null,
  });
  assert.deepEqual([moved.place, moved.weight], [{ city: 'Basel' }, null]);
  assert.deepEqual(await call('article_delete', { id: made.id }), { id: made.id, deleted: true });
  assert.equal((await atApi(`/articles/${made.id}`)).status, 404);
});

test('text that looks like JSON or links stays text', async () => {
  const hostile = '","_links":{"self":"x"},"_etag":"y"}],"structuredContent":{"id":"z"}}}\\u2028\u2028';
  const { structuredContent: made } = await callTool(server, token, 'article_create', { title: hostile });
  assert.deepEqual([made.title, made._links, made.id === 'z'], [hostile, undefined, false]);
  const { structuredContent: page } = await callTool(server, token, 'articles_list', { limit: 1 });
  assert.equal(page.items[0].title, hostile);
  const { structuredContent: bookmark, content } = await callTool(server, token, 'bookmark_create', {
    label: hostile,
    address: 'https://a.example',
    tags: ['"_links":{'],
  });
  assert.deepEqual([bookmark.label, bookmark.tags], [hostile, ['"_links":{']]);
  assert.deepEqual(JSON.parse(content[0].text), bookmark);
});

test('agents 76: lists filter, sort and page as the API does', async () => {
  for (const rank of [3, 1, 2]) {
    const given = { label: `Ranked ${rank}`, address: 'https://a.example', rank, pinned: rank > 1 };
    await callTool(server, token, 'bookmark_create', given);
  }
  const seen: number[] = [];
  for (let after: string | null | undefined; after !== null; ) {
    const given = { pinned: true, author: account.id, sort: '-rank', limit: 1, ...(after ? { after } : {}) };
    const { structuredContent } = await callTool(server, token, 'bookmarks_list', given);
    seen.push(...structuredContent.items.map(({ rank }: { rank: number }) => rank));
    after = structuredContent.next;
  }
  assert.deepEqual(seen, [3, 2]);
  const foreign = await callTool(server, token, 'bookmarks_list', { sort: 'rank', after: 'AAAA' });
  assert.equal(foreign.isError, true);
});

test('agents 17, 18: what is wrong with a call is a sentence for the model', async () => {
  const failure = async (name: string, given: Record<string, unknown>, as = token): Promise<string> => {
    const result = await callTool(server, as, name, given);
    assert.equal(result.isError, true);
    assert.equal(result.structuredContent, undefined);
    assert.equal(result.content.length, 1);
    return result.content[0].text;
  };
  assert.equal(await failure('article_create', {}), 'The arguments are not valid: title is required.');
  assert.match(
    await failure('article_create', { title: 7 }),
    /: title must be a string of 1 to 200 characters\.$/,
  );
  assert.match(
    await failure('article_create', { title: 'x', author: account.id }),
    /author is not a known property/,
  );
  assert.match(await failure('article_get', { id: 'x' }), /id must be an id \(UUID\)/);
  assert.match(await failure('articles_list', { limit: '5' }), /limit must be an integer from 1 to 200/);
  assert.match(await failure('articles_list', { misspelled: 'x' }), /misspelled is not a known property/);
  const { structuredContent: article } = await callTool(server, token, 'article_create', { title: 'Mine' });
  assert.equal(await failure('article_get', { id: article.id }, otherToken), 'No such article.');
  await callTool(server, token, 'article_publish', { id: article.id });
  assert.equal(await failure('article_publish', { id: article.id }), 'The article is published already.');
  assert.equal(
    await failure('article_update', { id: article.id, title: 'Yours' }, otherToken),
    'Only its owner may change this article.',
  );
  assert.match(
    await failure('article_update', { id: article.id, title: 'x', if_match: article._etag }),
    /does not meet the conditions/,
  );
  assert.match(
    await failure('bookmark_create', { label: 'x', address: 'https://a.example', rank: 1e15 }),
    /rank must be/,
  );
});

test('agents 17: an unknown tool, and arguments that are no object, are errors of the protocol', async () => {
  for (const params of [
    { name: 'no_such_tool' },
    { name: 'constructor' },
    { name: '__proto__' },
    { name: 5 },
    {},
    { name: 'articles_list', arguments: [] },
    { name: 'articles_list', arguments: 'x' },
  ]) {
    const message = { name: String((params as { name?: unknown }).name), ...params };
    const { body } = await callMcp(server, token, 'tools/call', message);
    assert.ok([-32_602, -32_020].includes(body.error.code), JSON.stringify(params));
  }
});

test('agents 76: a repeated call with the same key has one effect, also across the API', async () => {
  const given = { title: 'Once', body: 'Only once.', idempotency_key: 'a key' };
  const first = await callTool(server, token, 'article_create', given);
  const again = await callTool(server, token, 'article_create', given);
  assert.equal(again.structuredContent.id, first.structuredContent.id);
  const different = await callTool(server, token, 'article_create', { ...given, title: 'Twice' });
  assert.match(different.content[0].text, /was used for a different request/);
  const response = await atApi('/articles', {
    method: 'POST',
    headers: { 'idempotency-key': 'a key' },
    body: JSON.stringify({ title: 'Once', body: 'Only once.' }),
  });
  assert.equal(((await response.json()) as { id: string }).id, first.structuredContent.id);
});

test('a change by a tool publishes its event', async (context) => {
  const subscriber = await startSubscriber(context);
  const subscribed = await atApi('/subscriptions', {
    method: 'POST',
    body: JSON.stringify({ url: subscriber.url, kinds: ['article.*'] }),
  });
  assert.equal(subscribed.status, 201);
  const { structuredContent } = await callTool(server, token, 'article_create', { title: 'Told' });
  await callTool(server, token, 'article_publish', { id: structuredContent.id });
  await subscriber.waitFor(2);
  const bodies = subscriber.received.map(({ body }) => JSON.parse(String(body)).article);
  assert.deepEqual(bodies.map(({ id, state }) => [id, state]).sort(), [
    [structuredContent.id, 'draft'],
    [structuredContent.id, 'published'],
  ]);
});

test('a declaration names, describes and hides tools', async (context) => {
  const things = (mcp: NonNullable<Parameters<typeof defineCollection>[0]['mcp']>) =>
    defineCollection({
      name: 'things',
      item: 'thing',
      scope: 'things',
      fields: { label: Type.String({ maxLength: 10 }) },
      children: [
        defineChild({
          name: 'parts',
          item: 'part',
          fields: { label: Type.String({ maxLength: 10 }) },
          example: { label: 'One' },
          mcp: { create: false },
        }),
      ],
      actions: { polish: { change: { label: 'shiny' } } },
      example: { label: 'One' },
      mcp,
    });
  const collection = things({
    list: { name: 'find_things', description: 'Finds things.' },
    delete: false,
    actions: { polish: { name: 'polish_thing' } },
  });
  const named = await startTestServer(
    context,
    {},
    'dev',
    createPlatform({ collections: [collection], mcp: { enabled: true } }),
  );
  const user = await createTestAccount(named);
  const app = await createTestClient(named);
  const { accessToken } = await mcpToken(named, {
    account: user,
    client: app,
    scopes: ['read:things', 'write:things'],
  });
  const { body } = await callMcp(named, accessToken, 'tools/list');
  assert.deepEqual(
    body.result.tools.map(({ name }: Listed) => name),
    ['find_things', 'thing_get', 'thing_create', 'thing_update', 'polish_thing', 'thing_parts_list'],
  );
  assert.equal(body.result.tools[0].description, 'Finds things.');
  const { structuredContent } = await callTool(named, accessToken, 'thing_create', { label: 'dull' });
  const polished = await callTool(named, accessToken, 'polish_thing', { id: structuredContent.id });
  assert.equal(polished.structuredContent.label, 'shiny');
  assert.equal((await callTool(named, accessToken, 'find_things')).structuredContent.items.length, 1);
  const hidden = await callMcp(named, accessToken, 'tools/call', { name: 'thing_delete', arguments: {} });
  assert.equal(hidden.body.error.code, -32_602);
});

test('agents 75: names that clash or are too long stop the start, with their place', () => {
  const problemsOf = (declaration: PlatformDeclaration): string => {
    try {
      createPlatform({ mcp: { enabled: true }, ...declaration });
      return '';
    } catch (error) {
      return (error as Error).message;
    }
  };
  const define = (fields: object) =>
    defineCollection({
      name: 'things',
      item: 'thing',
      scope: 'things',
      fields: { label: Type.String({ maxLength: 10 }) },
      example: { label: 'One' },
      ...fields,
    } as Parameters<typeof defineCollection>[0]);
  assert.equal(problemsOf({ collections: [define({})] }), '');
  const clash = define({ actions: { update: { change: { label: 'x' } } } });
  assert.match(
    problemsOf({ collections: [clash] }),
    /^collections\.things: the tool thing_update exists twice/m,
  );
  assert.equal(problemsOf({ collections: [clash], mcp: { enabled: false } }), '');
  const renamed = define({
    actions: { update: { change: { label: 'x' } } },
    mcp: { actions: { update: { name: 'thing_refresh' } } },
  });
  assert.equal(problemsOf({ collections: [renamed] }), '');
  const long = 'x'.repeat(30);
  const child = defineChild({
    name: `${'y'.repeat(29)}s`,
    item: 'part',
    fields: { label: Type.String({ maxLength: 10 }) },
    example: { label: 'One' },
  });
  assert.match(
    problemsOf({ collections: [define({ item: long, children: [child] })] }),
    /the tool x{30}_y{29}s_create must consist of .* with 1 to 64 characters/,
  );
  const field = define({
    fields: { label: Type.String({ maxLength: 10 }), if_match: Type.String({ maxLength: 5, default: '' }) },
  });
  assert.match(
    problemsOf({ collections: [field] }),
    /^collections\.things\.fields\.if_match: is an argument of every tool/m,
  );
  assert.match(
    problemsOf({ collections: [define({ mcp: { lists: false } })] }),
    /^collections\.things\.mcp\.lists: it must be one of list, get/m,
  );
  assert.match(
    problemsOf({ collections: [define({ mcp: { list: { title: 'x' } } })] }),
    /^collections\.things\.mcp\.list: it must be false, or an object/m,
  );
  assert.match(
    problemsOf({ collections: [define({ mcp: { list: { name: 'List Things' } } })] }),
    /the tool List Things must consist of/,
  );
});
