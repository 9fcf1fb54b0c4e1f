/**
 * What a small body can cost. Every body that the API, the tools for agents and the registration of apps document is sent with values in
 * each place that a check could look at more than once. None takes much longer than an article of the same size: a client that may
 * send some requests a second could otherwise stop a node.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { requester } from '../support/clients/api_client.ts';
import { callMcp, mcpToken } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { timesAsMuch } from '../support/processor_time.ts';
import { runs } from '../support/runner/tier.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  expensiveValues,
  fullValue,
  type Json,
  pathsOf,
  valueAt,
  withValue,
} from '../support/values/expensive_values.ts';

const bytes = 12_000;
const kinds = Object.entries(expensiveValues).slice(0, runs(6, 100));
/** How many times as long as an article a body may take: the errors of a thousand members are many. */
const timesMax = 30;
const id = '0190f0f0-0000-7000-8000-000000000000';

const platform = createPlatform({ ...shipped, mcp: { enabled: true, management: true } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const account = await createTestAccount(server);
await sql`update accounts set is_admin = true where id = ${account.id}`.execute(server.db);
// biome-ignore lint/suspicious/noExplicitAny: documents are read as they come
const fetchJson = async (path: string): Promise<any> => (await fetch(server.baseUrl + path)).json();
const { scopes_supported: scopes } = await fetchJson('/.well-known/oauth-authorization-server');
const client = await createTestClient(server, { scopes });
const { accessToken } = await mintAccessToken(server, { account, client, scopes });
const request = requester(server, accessToken);
const { body: article } = await request('POST', '/articles', { json: { title: 'a', body: 'b' } });

type Send = (body: Json) => Promise<unknown>;

/** Milliseconds of the processor that the server, and little else, takes for a body. */
async function cost(send: Send, body: Json): Promise<number> {
  const before = process.threadCpuUsage();
  await send(body);
  const { user, system } = process.threadCpuUsage(before);
  return (user + system) / 1_000;
}

/** The lowest of some: other work, such as garbage collection, comes in between. */
async function leastCost(send: Send, body: Json, bound: number): Promise<number> {
  let least = Number.POSITIVE_INFINITY;
  for (let count = 0; count < 6 && least > bound; count += 1) {
    least = Math.min(least, await cost(send, body));
  }
  return least;
}

const sendArticle: Send = (json) => request('POST', '/articles', { json });
const plain = { title: 'a', body: 'text '.repeat(bytes / 5) };
for (let count = 0; count < 100; count += 1) await sendArticle(plain);
const bound = timesMax * Math.max(1, await leastCost(sendArticle, plain, 0));

/** @returns the bodies that take too long, in words */
async function expensiveOf(name: string, base: Json, send: Send): Promise<string[]> {
  const found: string[] = [];
  for (const path of pathsOf(base)) {
    for (const [kind, make] of kinds) {
      const body = withValue(base, path, make(bytes, valueAt(base, path)));
      const ms = await leastCost(send, body, bound);
      if (ms > bound) found.push(`${name} /${path.join('/')} with ${kind}: ${Math.round(ms)} ms`);
    }
  }
  return found;
}

/** Values with the first, the second and the third of alternatives, where they differ. */
function basesOf(schema: unknown, schemas: (reference: string) => unknown): Json[] {
  const bases = [0, 1, 2].slice(0, runs(1, 3)).map((choice) => fullValue(schema, schemas, choice));
  return [...new Map(bases.map((base) => [JSON.stringify(base), base])).values()];
}

test('attack: no body of the API takes long for its size', async () => {
  const { paths, components } = await fetchJson('/openapi.json');
  const found: string[] = [];
  let bodies = 0;
  // biome-ignore lint/suspicious/noExplicitAny: a document is read as it comes
  for (const [path, methods] of Object.entries<any>(paths)) {
    const url = path.replace('/articles/{id}', `/articles/${article.id}`).replaceAll(/\{[^}]+\}/g, id);
    for (const [method, operation] of Object.entries<{ requestBody?: { content: object } }>(methods)) {
      for (const [mediaType, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
        if (!mediaType.endsWith('json')) continue;
        bodies += 1;
        const send: Send = (body) =>
          request(method.toUpperCase(), url, {
            raw: JSON.stringify(body),
            headers: { 'content-type': mediaType },
          });
        const schemas = (reference: string) => components.schemas[reference.split('/').at(-1) as string];
        for (const base of basesOf(schema, schemas)) {
          found.push(...(await expensiveOf(`${method} ${path} ${mediaType}`, base, send)));
        }
      }
    }
  }
  assert.ok(bodies > 30, `${bodies} bodies`);
  assert.deepEqual(found, []);
});

test('attack: no arguments of a tool take long for their size', async () => {
  const { accessToken: token } = await mcpToken(server, { account, client, scopes });
  const { body } = await callMcp(server, token, 'tools/list');
  const { tools } = body.result;
  const found: string[] = [];
  for (const { name, inputSchema } of tools) {
    const send: Send = (given) =>
      callMcp(server, token, 'tools/call', { name, arguments: given as Record<string, unknown> });
    for (const base of basesOf(inputSchema, () => undefined)) {
      found.push(...(await expensiveOf(name, base, send)));
    }
  }
  assert.ok(tools.length > 10, `${tools.length} tools`);
  assert.deepEqual(found, []);
});

const register: Send = async (body) => {
  await sql`truncate registration_windows`.execute(server.db);
  const response = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  assert.notEqual(response.status, 429, await response.text());
};

test('attack: no registration of an app takes long for its size', async () => {
  const url = 'https://app.example/';
  const metadata: Json = {
    redirect_uris: [url],
    client_name: 'An app',
    grant_types: ['authorization_code'],
    response_types: ['code'],
    scope: 'openid',
    contacts: ['ann@app.example'],
    jwks: { keys: [{ kty: 'EC', crv: 'P-256', x: 'x', y: 'y' }] },
    token_endpoint_auth_method: 'private_key_jwt',
    logo_uri: url,
    post_logout_redirect_uris: [url],
    backchannel_logout_uri: url,
    software_statement: 'a.b.c',
    request_uris: [url],
    default_acr_values: ['a'],
  };
  assert.deepEqual(await expensiveOf('POST /oauth/register', metadata, register), []);
});

test('attack: a registration that is one long text costs no look at each letter', async () => {
  const [text, list] = ['a'.repeat(50_000), ['a'.repeat(50_000)]];
  for (const body of [text, list]) await register(body);
  const ratio = await timesAsMuch(
    () => register(text),
    () => register(list),
  );
  assert.ok(ratio < 4, `${ratio} times as much`);
});

test('attack: a patch with thousands of members that no article has costs little more than to parse it', async () => {
  for (const value of [null, 1]) {
    const raw = JSON.stringify(
      Object.fromEntries(Array.from({ length: 55_000 }, (_, n) => [`k${n}`, value])),
    );
    const path = `/articles/${article.id}`;
    const send = (method: string, to: string, type: string) => () =>
      request(method, to, { raw, headers: { 'content-type': type } });
    const ratio = await timesAsMuch(
      send('PATCH', path, 'application/merge-patch+json'),
      send('POST', `${path}/comments`, 'application/json'),
    );
    assert.ok(ratio < 2, `${value}: ${ratio} times as much`);
  }
});
