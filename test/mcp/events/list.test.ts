/** `events/list`, capabilities, arguments and errors. The numbers are those of docs/conformance-agents.md. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import { defineEventKind, Type } from '../../../src/index.ts';
import { createPlatform } from '../../../src/platform.ts';
import { callMcp, callOlder, mcpToken } from '../../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';

const server = await startTestServer({ after });
const client = await createTestClient(server);
const account = await createTestAccount(server);
const scopes = ['read:posts', 'read:profile'];
const { accessToken: token } = await mcpToken(server, { account, client, scopes });

// biome-ignore lint/suspicious/noExplicitAny: tests read what the server sent
async function list(accessToken: string, cursor?: string): Promise<any> {
  const { body } = await callMcp(server, accessToken, 'events/list', cursor === undefined ? {} : { cursor });
  return body.result;
}

const poll = (params: object, accessToken = token) =>
  callMcp(server, accessToken, 'events/poll', { ...params });

test('agents 24: events are announced in both places, in both versions of the protocol', async () => {
  const announced = { tools: {}, events: {}, extensions: { 'io.modelcontextprotocol/events': {} } };
  const discovered = await callMcp(server, token, 'server/discover');
  assert.deepEqual(discovered.body.result.capabilities, announced);
  const params = {
    protocolVersion: '2025-11-25',
    capabilities: {},
    clientInfo: { name: 'a test', version: '1' },
  };
  const initialized = await callOlder(server, token, 'initialize', params);
  assert.deepEqual(initialized.body.result.capabilities, announced);
});

test('agents 25, 64: kinds are listed with the schemas of their arguments and bodies', async () => {
  const { events, nextCursor, resultType } = await list(token);
  assert.equal(resultType, 'complete');
  assert.equal(nextCursor, undefined);
  const names = events.map(({ name }: { name: string }) => name);
  assert.deepEqual(names, [...names].sort());
  const paid = events.find(({ name }: { name: string }) => name === 'invoice.paid');
  const { description, inputSchema, payloadSchema, ...others } = paid;
  assert.deepEqual(others, { name: 'invoice.paid', delivery: ['webhook', 'poll', 'push'] });
  assert.equal(description, 'An invoice of the user was paid.');
  assert.deepEqual(Object.keys(inputSchema.properties), ['id', 'amount', 'currency']);
  assert.equal(inputSchema.additionalProperties, false);
  assert.deepEqual(payloadSchema.required, ['invoice']);
});

test('agents 25: built-in kinds, and those outside the scopes, are not listed', async () => {
  const namesFor = async (granted: string[]) => {
    const { accessToken } = await mcpToken(server, { account, client, scopes: granted });
    const { events } = await list(accessToken);
    return events.map(({ name }: { name: string }) => name);
  };
  assert.deepEqual(await namesFor(['read:profile']), ['invoice.paid']);
  assert.deepEqual(await namesFor(['write:posts']), []);
  assert.ok(!(await namesFor(scopes)).includes('ping'));
});

test('agents 25: an app that acts for itself has no events', async () => {
  const claims = { aud: `${server.baseUrl}/mcp` };
  const { accessToken } = await mintAccessToken(server, { client, scopes, claims });
  assert.deepEqual((await list(accessToken)).events, []);
  const { body } = await poll({ name: 'push', cursor: null }, accessToken);
  assert.deepEqual([body.error.code, body.error.data], [-32_012, { reason: 'user_required' }]);
});

test('agents 25: many kinds come in pages, and a made-up cursor is refused', async (context) => {
  const eventKinds = Array.from({ length: 130 }, (_, index) =>
    defineEventKind({
      ...{ name: `kind_${index}.made`, description: 'A test.', object: null },
      ...{ schema: Type.Object({ n: Type.Integer() }), example: { n: 1 } },
    }),
  );
  const many = await startTestServer(
    context,
    {},
    'dev',
    createPlatform({ eventKinds, mcp: { enabled: true } }),
  );
  const user = await createTestAccount(many);
  const app = await createTestClient(many);
  const { accessToken } = await mcpToken(many, { account: user, client: app, scopes: ['openid'] });
  const seen = new Set<string>();
  let params = {};
  for (;;) {
    const { body } = await callMcp(many, accessToken, 'events/list', params);
    for (const { name } of body.result.events) seen.add(name);
    if (body.result.nextCursor === undefined) break;
    params = { cursor: body.result.nextCursor };
  }
  assert.equal(seen.size, 130);
  const refused = await callMcp(many, accessToken, 'events/list', { cursor: 'made up' });
  assert.equal(refused.body.error.code, -32_602);
  assert.deepEqual(refused.body.error.data, { field: 'cursor', reason: 'invalid' });
});

test('agents 25, 78: schemas are valid, and examples of bodies conform', async () => {
  const ajv = new Ajv({ strict: false });
  addFormats.default(ajv);
  const { events } = await list(token);
  for (const { inputSchema, payloadSchema } of events) {
    assert.equal(ajv.validateSchema(inputSchema), true);
    assert.equal(ajv.validateSchema(payloadSchema), true);
  }
  const { inputSchema } = events.find(({ name }: { name: string }) => name === 'invoice.paid');
  const validate = ajv.compile(inputSchema);
  for (const valid of [{}, { amount: 5 }, { currency: ['EUR', 'USD'] }, { amount: { $gte: 1, $lt: 9 } }]) {
    assert.equal(validate(valid), true, JSON.stringify(valid));
  }
  for (const wrong of [
    { made_up: 1 },
    { amount: '5' },
    { currency: [] },
    { amount: {} },
    { amount: { $eq: 1 } },
  ]) {
    assert.equal(validate(wrong), false, JSON.stringify(wrong));
  }
});

test('agents 26, 59: a kind that does not exist is NotFound', async () => {
  for (const name of ['made.up', 'ping', '__proto__', 'constructor']) {
    const { status, body } = await poll({ name, cursor: null });
    assert.equal(status, 200);
    assert.deepEqual(body.error, { code: -32_011, message: 'NotFound', data: { kind: 'event' } });
  }
});

test('agents 77: a kind outside the scopes gets 403 with the scope that it needs', async () => {
  const { accessToken } = await mcpToken(server, { account, client, scopes: ['read:posts'] });
  for (const method of ['events/poll', 'events/stream']) {
    const refused = await callMcp(server, accessToken, method, { name: 'invoice.paid', cursor: null });
    assert.equal(refused.status, 403);
    assert.match(
      refused.headers.get('www-authenticate') ?? '',
      /error="insufficient_scope".*scope="read:profile"/,
    );
  }
});

/** Parameters that are refused, with the place and reason that the agent learns. */
const refusals: [string, object, string, string][] = [
  ['no name', {}, 'name', 'required'],
  ['a name that is no text', { name: 5 }, 'name', 'invalid_type'],
  ['arguments that are no object', { arguments: [] }, 'arguments', 'invalid_type'],
  ['an unknown argument', { arguments: { secret_name: 1 } }, 'arguments', 'invalid'],
  ['a name of the prototype', { arguments: { constructor: 'x' } }, 'arguments', 'invalid'],
  ['another type', { arguments: { amount: '5' } }, 'arguments.amount', 'invalid_type'],
  ['null where no null is', { arguments: { amount: null } }, 'arguments.amount', 'invalid_type'],
  ['an empty list', { arguments: { currency: [] } }, 'arguments.currency', 'invalid'],
  ['a long list', { arguments: { amount: Array(101).fill(1) } }, 'arguments.amount', 'too_large'],
  ['a list in a list', { arguments: { amount: [[1]] } }, 'arguments.amount', 'invalid_type'],
  ['no limit', { arguments: { amount: {} } }, 'arguments.amount', 'invalid'],
  ['an unknown limit', { arguments: { amount: { $ne: 1 } } }, 'arguments.amount', 'invalid'],
  ['a prototype as limit', { arguments: { amount: { toString: 1 } } }, 'arguments.amount', 'invalid'],
  ['long text', { arguments: { currency: 'x'.repeat(1_001) } }, 'arguments.currency', 'too_large'],
  ['many bytes', { arguments: { id: Array(5).fill('x'.repeat(900)) } }, 'arguments', 'too_large'],
  [
    'deep nesting',
    { arguments: JSON.parse(`${'{"a":'.repeat(17)}1${'}'.repeat(17)}`) },
    'arguments',
    'too_large',
  ],
  ['large parameters', { other: 'x'.repeat(65_536) }, 'params', 'too_large'],
  ['a cursor that is no text', { cursor: 7 }, 'cursor', 'invalid_type'],
  ['a made-up cursor', { cursor: 'made up' }, 'cursor', 'invalid'],
  ['an age that is no number', { maxAgeMs: 'old' }, 'maxAgeMs', 'invalid_type'],
  ['a negative age', { maxAgeMs: -1 }, 'maxAgeMs', 'invalid'],
  ['no events', { maxEvents: 0 }, 'maxEvents', 'invalid'],
];

test('agents 29, 58: invalid parameters are refused with place and reason, and never repeated', async () => {
  for (const [what, params, field, reason] of refusals) {
    const { status, body } = await poll(what === 'no name' ? {} : { name: 'invoice.paid', ...params });
    assert.equal(status, 200);
    assert.deepEqual(body.error, { code: -32_602, message: 'InvalidParams', data: { field, reason } }, what);
  }
});

test('agents 29: duplicate members and __proto__ are refused before anything is read', async () => {
  for (const given of ['{"amount":1,"amount":2}', '{"__proto__":{"amount":1}}']) {
    const response = await fetch(`${server.baseUrl}/mcp`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: `{"jsonrpc":"2.0","id":1,"method":"events/poll","params":{"name":"invoice.paid","arguments":${given}}}`,
    });
    assert.equal(response.status, 400);
    assert.equal(((await response.json()) as { error: { code: number } }).error.code, -32_600);
  }
});

test('agents 60: a setting chooses the numbers of the other draft', async (context) => {
  const { collections, eventKinds } = (await import('../../../nuncio.config.ts')).default;
  const platform = createPlatform({
    collections: collections ?? [],
    eventKinds: eventKinds ?? [],
    mcp: { enabled: true, events: { firstErrorCode: -32_023 } },
  });
  const other = await startTestServer(context, {}, 'dev', platform);
  const user = await createTestAccount(other);
  const app = await createTestClient(other);
  const { accessToken } = await mcpToken(other, { account: user, client: app, scopes });
  const { body } = await callMcp(other, accessToken, 'events/poll', { name: 'made.up' });
  assert.equal(body.error.code, -32_023);
});

test('settings of events are checked', () => {
  const events = {
    firstErrorCode: -1,
    subscriptionsPerGrant: -1,
    webhookId: 'delivery',
    made_up: 1,
  } as object;
  assert.throws(() => createPlatform({ mcp: { enabled: true, events } }), {
    message:
      /mcp\.events\.made_up.*\n.*subscriptionsPerGrant.*\n.*firstErrorCode: must be -32011 or -32023.*\n.*webhookId: must be event or message/,
  });
});

test('agents 59, 62: unsubscribing an unknown subscription is no error, wrong parameters are', async () => {
  const unsubscribe = async (params: object) =>
    (await callMcp(server, token, 'events/unsubscribe', { ...params })).body;
  const delivery = { url: 'https://hooks.example.com/cb' };
  const { result } = await unsubscribe({ name: 'gone.kind', arguments: { any: 1 }, delivery });
  assert.equal(result.resultType, 'complete');
  const refused = async (params: object) => (await unsubscribe(params)).error.data;
  assert.deepEqual(await refused({ name: 'push' }), { field: 'delivery', reason: 'required' });
  assert.deepEqual(await refused({ name: 'push', delivery: {} }), {
    field: 'delivery.url',
    reason: 'required',
  });
  const invalid = { name: 'push', delivery: { url: 'no url' } };
  assert.deepEqual(await refused(invalid), { field: 'delivery.url', reason: 'invalid_url' });
});
