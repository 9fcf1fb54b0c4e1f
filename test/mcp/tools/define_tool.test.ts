/** Tools that the operator defines: what their handlers get, and what agents see of results and failures. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type DefinedTool, defineTool, type ToolContext, ToolError, Type } from '../../../src/index.ts';
import { createPlatform } from '../../../src/platform.ts';
import { callMcp, callTool, mcpToken } from '../../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';

const strict = { additionalProperties: false };
const contexts: ToolContext[] = [];

const add = defineTool({
  name: 'add_numbers',
  title: 'Add numbers',
  description: 'Adds two numbers.',
  input: Type.Object({ a: Type.Number(), b: Type.Number({ default: 1 }) }, strict),
  output: Type.Object({ sum: Type.Number() }, strict),
  scope: 'read:numbers',
  openWorld: false,
  handler: ({ a, b }, context) => {
    contexts.push(context);
    return { sum: a + b };
  },
});

const fail = defineTool({
  name: 'fail',
  description: 'Fails in several ways.',
  input: Type.Object({ how: Type.String() }, strict),
  output: Type.Object({ value: Type.String() }, strict),
  scope: 'write:numbers',
  async handler({ how }) {
    if (how === 'tell') throw new ToolError('There is no number 7. Use one from 1 to 6.');
    if (how === 'crash') throw new Error('password=secret at db.internal');
    if (how === 'nothing') return undefined as never;
    if (how === 'wrong') return { value: 5 } as never;
    if (how === 'large') return { value: 'x'.repeat(5_000_000) };
    if (how === 'circle') {
      const circle: Record<string, unknown> = {};
      circle.circle = circle;
      return circle as never;
    }
    return { value: how };
  },
});

let finish = Promise.withResolvers<void>();
const wait = defineTool({
  name: 'wait',
  description: 'Waits until the test lets it go on.',
  input: Type.Object({}, strict),
  output: Type.Object({}, strict),
  scope: 'read:patience',
  async handler() {
    await finish.promise;
    return {};
  },
});

const platform = createPlatform({ tools: [add, fail, wait], mcp: { enabled: true } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const account = await createTestAccount(server);
const client = await createTestClient(server);
const { accessToken: token, grantId } = await mcpToken(server, {
  account,
  client,
  scopes: ['read:numbers', 'write:numbers'],
});

test('a defined tool is listed with its schemas, its hints and its scope', async () => {
  const { body } = await callMcp(server, token, 'tools/list');
  const [first, second] = body.result.tools;
  assert.deepEqual(
    [first.name, first.title, first.description],
    ['add_numbers', 'Add numbers', 'Adds two numbers.'],
  );
  assert.deepEqual(Object.keys(first.inputSchema.properties), ['a', 'b']);
  assert.deepEqual(first.annotations, { readOnlyHint: true, destructiveHint: false, openWorldHint: false });
  // Without a declaration the hints are the careful ones.
  assert.deepEqual(second.annotations, { readOnlyHint: false, destructiveHint: true, openWorldHint: true });
  const metadata = await fetch(`${server.baseUrl}/.well-known/oauth-protected-resource/mcp`);
  const { scopes_supported: supported } = (await metadata.json()) as Record<string, unknown>;
  assert.deepEqual(supported, ['read:numbers', 'write:numbers', 'read:patience']);
});

test('slow tools of one token leave room for others, and end with their calls', async () => {
  const slow = await mcpToken(server, { account, client, scopes: ['read:patience', 'read:numbers'] });
  const call = () => callMcp(server, slow.accessToken, 'tools/call', { name: 'wait', arguments: {} });
  finish = Promise.withResolvers();
  const calls = Array.from({ length: 25 }, call);
  // Those that are refused return at once, the others wait for the test.
  const refused = await Promise.race(calls);
  assert.equal(refused.status, 429);
  assert.equal(refused.headers.get('retry-after'), '30');
  assert.deepEqual((await callTool(server, token, 'add_numbers', { a: 2 })).structuredContent, { sum: 3 });
  finish.resolve();
  const statuses = (await Promise.all(calls)).map(({ status }) => status);
  assert.deepEqual(statuses.toSorted(), [...Array(20).fill(200), ...Array(5).fill(429)]);
  assert.equal((await call()).status, 200);
});

test('the handler gets valid arguments with defaults, and who calls', async () => {
  const { structuredContent } = await callTool(server, token, 'add_numbers', { a: 2 });
  assert.deepEqual(structuredContent, { sum: 3 });
  const { principal, signal } = contexts.at(-1) as ToolContext;
  assert.deepEqual(
    { ...principal, scopes: [...principal.scopes] },
    {
      accountId: account.id,
      externalId: null,
      clientId: client.id,
      grantId,
      scopes: ['read:numbers', 'write:numbers'],
    },
  );
  assert.equal(signal.aborted, false);
});

test('agents 18: invalid arguments never reach the handler', async () => {
  const before = contexts.length;
  for (const given of [{}, { a: '2' }, { a: 2, c: 3 }, { a: null }]) {
    const result = await callTool(server, token, 'add_numbers', given);
    assert.equal(result.isError, true);
    assert.match(result.content[0].text, /^The arguments are not valid: /);
  }
  assert.equal(contexts.length, before);
});

test('a tool error reaches the model, and other errors do not', async () => {
  const told = await callTool(server, token, 'fail', { how: 'tell' });
  assert.deepEqual(
    [told.isError, told.content[0].text],
    [true, 'There is no number 7. Use one from 1 to 6.'],
  );
  for (const how of ['crash', 'nothing', 'wrong', 'circle']) {
    const result = await callTool(server, token, 'fail', { how });
    assert.deepEqual(
      [result.isError, result.content[0].text, result.structuredContent],
      [true, 'The server failed. The call may have had no effect; try again later.', undefined],
      how,
    );
  }
  const large = await callTool(server, token, 'fail', { how: 'large' });
  assert.match(large.content[0].text, /too large/);
});

test('agents 77: a defined tool needs its scope', async () => {
  const { accessToken } = await mcpToken(server, { account, client, scopes: ['read:numbers'] });
  const { body } = await callMcp(server, accessToken, 'tools/list');
  assert.deepEqual(
    body.result.tools.map(({ name }: { name: string }) => name),
    ['add_numbers'],
  );
  const refused = await callMcp(server, accessToken, 'tools/call', { name: 'fail', arguments: { how: 'x' } });
  assert.equal(refused.status, 403);
});

test('mistakes in a definition stop the start, with their place', () => {
  const problemsOf = (...tools: unknown[]): string => {
    try {
      createPlatform({ tools: tools as DefinedTool[], mcp: { enabled: true } });
      return '';
    } catch (error) {
      return (error as Error).message;
    }
  };
  const valid = {
    name: 'a_tool',
    description: 'Does it.',
    input: Type.Object({}),
    output: Type.Object({}),
    scope: 'read:numbers',
    handler: () => ({}),
  };
  const define = (fields: object) => defineTool({ ...valid, ...fields } as Parameters<typeof defineTool>[0]);
  assert.equal(problemsOf(define({})), '');
  assert.match(problemsOf(valid), /^tools\[0\]: must be the result of defineTool/m);
  assert.match(problemsOf(define({ name: 'A tool' })), /the tool A tool must consist of lower-case/);
  assert.match(problemsOf(define({ name: 'x'.repeat(65) })), /with 1 to 64 characters/);
  assert.match(problemsOf(define({}), define({})), /^tools\.a_tool: the tool a_tool exists twice/m);
  assert.match(problemsOf(define({ description: '' })), /^tools\.a_tool\.description: must have 1 to 2000/m);
  assert.match(problemsOf(define({ scope: 'numbers' })), /^tools\.a_tool\.scope: must be read:<object>/m);
  assert.match(problemsOf(define({ scope: 'write:accounts' })), /accounts is reserved for the server/);
  assert.match(
    problemsOf(define({ input: Type.String() })),
    /^tools\.a_tool\.input: must be the schema of an object/m,
  );
  assert.match(
    problemsOf(define({ output: { type: 'object', properties: { a: { type: 'nonsense' } } } })),
    /^tools\.a_tool\.output: is not a valid schema/m,
  );
  assert.match(
    problemsOf(
      define({ input: { type: 'object', properties: { a: { $ref: 'https://evil.example/s.json' } } } }),
    ),
    /^tools\.a_tool\.input: must not refer to other documents/m,
  );
  assert.match(problemsOf(define({ handler: 5 })), /^tools\.a_tool\.handler: must be a function/m);
});

test('mistakes in the section mcp stop the start, with their place', () => {
  const problemsOf = (mcp: unknown): string => {
    try {
      createPlatform({ mcp: mcp as { enabled: boolean } });
      return '';
    } catch (error) {
      return (error as Error).message;
    }
  };
  assert.equal(
    problemsOf({ enabled: true, allowedOrigins: ['https://a.example', 'http://localhost:6274'] }),
    '',
  );
  assert.match(problemsOf({ enabled: 'yes' }), /^mcp\.enabled: must be true or false/m);
  assert.match(problemsOf({ management: 'yes' }), /^mcp\.management: must be true or false/m);
  assert.match(problemsOf({ origins: [] }), /^mcp\.origins: is not a known setting/m);
  assert.match(
    problemsOf({ allowedOrigins: 'https://a.example' }),
    /^mcp\.allowedOrigins: must be an array/m,
  );
  for (const origin of ['*', 'null', 'https://a.example/', 'http://a.example', 'https://u:p@a.example', 5]) {
    assert.match(problemsOf({ allowedOrigins: [origin] }), /^mcp\.allowedOrigins\[0\]: must be an origin/m);
  }
});
