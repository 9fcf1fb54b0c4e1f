/**
 * One declaration, five contracts: what a platform with several collections says of its kinds, fields, scopes and actions in
 * OpenAPI, AsyncAPI, the tools and the events for agents, and on the consent page is the same. Only the published contracts are
 * compared, each read as its clients read it.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { callMcp, mcpToken, postMcp } from '../support/clients/mcp_client.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
} from '../support/clients/oauth.ts';
import { bookmarks, tickets } from '../support/servers/platform.ts';
import { startTestServer } from '../support/servers/server.ts';

// biome-ignore lint/suspicious/noExplicitAny: documents are read as they come
type Json = any;

const collections = [...(shipped.collections ?? []), bookmarks, tickets];
const platform = createPlatform({ ...shipped, collections, mcp: { enabled: true } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const account = await createTestAccount(server);
const objects = ['links', 'posts', 'profile', 'tickets'];
const allScopes = objects.flatMap((object) => [`read:${object}`, `write:${object}`]);
const client = await createTestClient(server, { scopes: allScopes });

const read = async (path: string): Promise<Json> => (await fetch(server.baseUrl + path)).json();
const openApi = await read('/openapi.json');
const asyncApi = await read('/asyncapi.json');

/** Everything that an agent with these scopes is offered, by name. */
async function offered(scopes: readonly string[]) {
  const { accessToken } = await mcpToken(server, { account, client, scopes });
  const list = async (method: string, member: string): Promise<Map<string, Json>> => {
    const { body } = await callMcp(server, accessToken, method);
    assert.equal(body.result.nextCursor, undefined, 'the list has one page');
    return new Map(body.result[member].map((each: Json) => [each.name, each]));
  };
  return { tools: await list('tools/list', 'tools'), events: await list('events/list', 'events') };
}

const agents = await offered(allScopes);

/** An operation of the API about a declared collection, with the tool that an agent has for it. */
interface Operation {
  operation: Json;
  tool: string;
  kind: 'list' | 'get' | 'create' | 'update' | 'delete' | 'action';
}

/** The tools' names follow from paths and items, by the documented rule. */
function operations(): Operation[] {
  const methods = { get: 'get', post: 'create', patch: 'update', delete: 'delete' } as const;
  return platform.collections.flatMap(({ name, item }) =>
    Object.entries(openApi.paths as Record<string, Json>).flatMap(([path, methodsOfPath]) => {
      const [first, parameter, last, ...more] = path.slice(1).split('/');
      if (first !== name || more.length > 0) return [];
      return Object.entries(methods).flatMap(([method, action]): Operation[] => {
        const operation = methodsOfPath[method];
        if (operation === undefined) return [];
        const isList = method === 'get';
        if (parameter === undefined) {
          return [
            isList
              ? { operation, tool: `${name}_list`, kind: 'list' }
              : { operation, tool: `${item}_create`, kind: 'create' },
          ];
        }
        if (last === undefined) return [{ operation, tool: `${item}_${action}`, kind: action }];
        if (parameter === '{id}') return [{ operation, tool: `${item}_${last}`, kind: 'action' }];
        return [
          {
            operation,
            tool: `${item}_${last}_${isList ? 'list' : 'create'}`,
            kind: isList ? 'list' : 'create',
          },
        ];
      });
    }),
  );
}

const declared = operations();

/** The dotted names of all fields of a schema, with references of its document. Links and entity tags are for one contract each. */
function fieldsOf(schema: Json, document: Json, prefix = ''): string[] {
  const { $ref } = schema;
  if ($ref !== undefined) {
    const target = ($ref as string)
      .slice(2)
      .split('/')
      .reduce((part, name) => part[name], document);
    return fieldsOf(target, document, prefix);
  }
  const branches = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])];
  const nested = branches.flatMap((branch: Json) => fieldsOf(branch, document, prefix));
  if (schema.items !== undefined) nested.push(...fieldsOf(schema.items, document, `${prefix}[].`));
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    if (['_links', '_embedded', '_etag'].includes(name)) continue;
    nested.push(prefix + name, ...fieldsOf(property, document, `${prefix}${name}.`));
  }
  return [...new Set(nested)].sort();
}

const without = (names: readonly string[], ...others: string[]) =>
  names.filter((name) => !others.includes(name));

/** The body of a response or request, of the media type that tools use. */
function jsonOf({ content }: Json): Json {
  return (content['application/merge-patch+json'] ?? content['application/json']).schema;
}

test('OpenAPI, AsyncAPI and the events for agents have the same kinds', () => {
  const kinds = Object.keys(openApi.webhooks).sort();
  assert.ok(kinds.length >= 8, kinds.join(' '));
  const messages = Object.values(asyncApi.components.messages as Record<string, Json>);
  assert.deepEqual(messages.map(({ name }) => name).sort(), kinds);
  assert.deepEqual([...agents.events.keys()].sort(), kinds);
});

test('a kind has the same words and the same fields in every contract', () => {
  const messages = Object.values(asyncApi.components.messages as Record<string, Json>);
  for (const [kind, { post }] of Object.entries(openApi.webhooks as Record<string, Json>)) {
    const message = messages.find(({ name }) => name === kind);
    const event = agents.events.get(kind);
    const fields = fieldsOf(jsonOf(post.requestBody), openApi);
    assert.ok(fields.length > 0, kind);
    assert.deepEqual(fieldsOf(message.payload, asyncApi), fields, kind);
    assert.deepEqual(fieldsOf(event.payloadSchema, event.payloadSchema), fields, kind);
    assert.deepEqual([message.summary, event.description], [post.summary, post.summary], kind);
  }
});

test('every operation of a collection has its tool, and every tool its operation', () => {
  assert.deepEqual([...agents.tools.keys()].sort(), declared.map(({ tool }) => tool).sort());
  const actions = declared.filter(({ kind }) => kind === 'action').map(({ tool }) => tool);
  assert.deepEqual(actions.sort(), ['article_publish', 'ticket_close', 'ticket_wait']);
});

test('a resource has the same fields in the API, as the result of tools, and in its events', () => {
  for (const { operation, tool, kind } of declared) {
    if (kind === 'delete') continue;
    const [success] = Object.keys(operation.responses).filter((status) => status.startsWith('2'));
    const fields = fieldsOf(jsonOf(operation.responses[success as string]), openApi);
    const { outputSchema } = agents.tools.get(tool);
    const page = kind === 'list' ? ['next'] : [];
    assert.deepEqual(without(fieldsOf(outputSchema, outputSchema), ...page), fields, tool);
  }
  for (const { item } of platform.collections) {
    for (const [kind, { payloadSchema }] of agents.events) {
      if (payloadSchema.properties[item] === undefined || !kind.startsWith(`${item}.`)) continue;
      const { outputSchema } = agents.tools.get(`${item}_get`);
      const resource = fieldsOf(payloadSchema.properties[item], payloadSchema);
      assert.deepEqual(resource, fieldsOf(outputSchema, outputSchema), kind);
    }
  }
});

test('a tool takes what the body and the query of its operation take', () => {
  for (const { operation, tool, kind } of declared) {
    const { inputSchema } = agents.tools.get(tool);
    const isChild = /_(?:comments|notes)_/.test(tool);
    const own = ['id', 'if_match', 'idempotency_key'].filter(
      (name) => kind !== 'list' || (isChild && name === 'id'),
    );
    const given = without(fieldsOf(inputSchema, inputSchema), ...own);
    if (kind === 'list') {
      const query = (operation.parameters as Json[]).filter((each) => each.in === 'query');
      const names = query.map(({ name }) => name);
      // A model gets whole resources, without those they link to.
      assert.deepEqual(given, without(names.sort(), 'fields', 'expand'), tool);
    } else {
      const body =
        operation.requestBody === undefined ? [] : fieldsOf(jsonOf(operation.requestBody), openApi);
      assert.deepEqual(given, body, tool);
    }
  }
});

test('an operation, its tool and its events need the same scope', async () => {
  const scopeOf = ({ security }: Json): string => security[0].oauth[0];
  for (const scope of allScopes) {
    const { tools, events } = await offered([scope]);
    const mine = declared.filter(({ operation }) => scopeOf(operation) === scope).map(({ tool }) => tool);
    assert.deepEqual([...tools.keys()].sort(), mine.sort(), scope);
    const kinds = Object.entries(openApi.webhooks as Record<string, Json>)
      .filter(([, { post }]) => post.description.includes(`Needs the scope ${scope}.`))
      .map(([name]) => name);
    assert.deepEqual([...events.keys()].sort(), kinds.sort(), scope);
  }
});

test('the consent page has the scopes that agents ask for, in the words of the reference', async () => {
  const { headers } = await postMcp(server, null, {});
  const asked = /scope="([^"]+)"/.exec(headers.get('www-authenticate') ?? '')?.[1]?.split(' ') ?? [];
  const needed = declared.map(({ operation }) => operation.security[0].oauth[0] as string);
  const heard = Object.values(openApi.webhooks as Record<string, Json>).flatMap(
    ({ post }) => /Needs the scope (\S+)\./.exec(post.description)?.[1] ?? [],
  );
  assert.deepEqual(asked.toSorted(), [...new Set([...needed, ...heard])].sort());
  const { challenge } = createPkce();
  const browser = new TestBrowser(server.baseUrl);
  const login = await browser.open(
    authorizationUrl(server, client, {
      scope: asked.join(' '),
      resource: `${server.baseUrl}/mcp`,
      code_challenge: challenge,
      code_challenge_method: 'S256',
    }),
  );
  const { email, password } = account;
  const { text } = await browser.submit(login, { email, password, action: 'login' });
  const { scopes } = openApi.components.securitySchemes.oauth.flows.authorizationCode;
  const shown = [...text.matchAll(/<li>([^<]+) <code class="soft">((?:read|write):[^<]+)<\/code><\/li>/g)];
  assert.deepEqual(shown.map(([, , name]) => name).sort(), asked.toSorted());
  for (const [, words = '', name = ''] of shown) {
    // The page addresses the user, of whom the reference speaks.
    assert.equal(words.replaceAll(/\byour\b/g, 'the user’s'), scopes[name], name);
  }
});

test('what a declaration hides or adds is hidden or added in all contracts', async (context) => {
  const fewer = createPlatform({ ...shipped, mcp: { enabled: true } });
  const smaller = await startTestServer(context, {}, 'dev', fewer);
  const [document, messages] = await Promise.all(
    ['/openapi.json', '/asyncapi.json'].map(async (path) => (await fetch(smaller.baseUrl + path)).text()),
  );
  const user = await createTestAccount(smaller);
  const app = await createTestClient(smaller, { scopes: ['read:posts'] });
  const { accessToken } = await mcpToken(smaller, { account: user, client: app, scopes: ['read:posts'] });
  const tools = JSON.stringify((await callMcp(smaller, accessToken, 'tools/list')).body);
  const events = JSON.stringify((await callMcp(smaller, accessToken, 'events/list')).body);
  const { headers } = await postMcp(smaller, null, {});
  const challenge = headers.get('www-authenticate') ?? '';
  for (const text of [document, messages, tools, events, challenge]) {
    assert.doesNotMatch(text ?? '', /tickets?[._:"]|bookmark/);
    assert.match(text ?? '', /article|posts/);
  }
});
