/** The reference documents are valid, describe every response, and suffice to generate a client. */

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { after, test } from 'node:test';
import { Validator } from '@seriousme/openapi-schema-validator';
import { Ajv } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import fc from 'fast-check';
import {
  type ApiResponse,
  type ApiUser,
  createApiUser,
  requester,
} from '../../support/clients/api_client.ts';
import { createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { type ConsoleUser, createConsoleUser } from '../../support/console/console_user.ts';
import { runs } from '../../support/runner/tier.ts';
import { testPlatform, testScopes } from '../../support/servers/platform.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { anything, fitting, type Schema } from '../../support/values/schema_values.ts';

const server = await startTestServer({ after }, {}, 'dev', testPlatform);
const nobody = requester(server);
const { body: document } = await nobody('GET', '/openapi.json');

test('the OpenAPI document is valid and names every event kind', async () => {
  const result = await new Validator().validate(structuredClone(document));
  assert.deepEqual(result, { valid: true });
  assert.deepEqual(
    Object.keys(document.webhooks).sort(),
    testPlatform.eventKinds.map((kind) => kind.name).sort(),
  );
});

test('kinds and scopes are described to app developers in plain sentences', () => {
  const summaries = Object.values(document.webhooks as Record<string, { post: { summary: string } }>).map(
    ({ post }) => post.summary,
  );
  assert.ok(summaries.includes('An article was created.'), summaries.join(' '));
  assert.ok(summaries.includes('An article was published.'));
  assert.ok(summaries.includes('A comment was created.'));
  const { flows } = document.components.securitySchemes.oauth;
  for (const { scopes } of Object.values(flows) as { scopes: Record<string, string> }[]) {
    for (const [name, description] of Object.entries(scopes)) {
      assert.doesNotMatch(description, /\b[Yy]our?\b/, name);
    }
  }
  const { scopes } = flows.authorizationCode;
  assert.equal(scopes['read:profile'], 'see the user’s profile: name and email address');
});

test('the AsyncAPI document is valid', async () => {
  const asyncApi: Schema = (await nobody('GET', '/asyncapi.json')).body;
  const require = createRequire(import.meta.url);
  const schema = require('@asyncapi/specs/schemas/3.0.0-without-$id.json');
  const ajv = new Ajv({ strict: false, allErrors: true, validateFormats: false });
  const validate = ajv.compile(schema);
  assert.ok(validate(asyncApi), ajv.errorsText(validate.errors));
  assert.deepEqual(Object.keys(asyncApi.components.messages).length, testPlatform.eventKinds.length);
});

test('every example of the document fits its schema', () => {
  const ajv = documentAjv();
  let count = 0;
  const visit = (value: unknown, place: string) => {
    if (typeof value !== 'object' || value === null) return;
    if ('schema' in value && 'example' in value && value.example !== undefined) {
      count += 1;
      const validate = ajv.compile(rebased(value.schema as Schema));
      assert.ok(validate(value.example), `${place}: ${ajv.errorsText(validate.errors)}`);
    }
    for (const [name, member] of Object.entries(value)) visit(member, `${place}/${name}`);
  };
  visit(document, '');
  assert.ok(count > 30, String(count));
});

/** Number of random requests for each operation. */
const runsEach = runs(15, 60);

test('no operation returns a response outside the document for any request', async (t) => {
  const user = await createApiUser(server, [...testScopes, 'read:webhooks', 'write:webhooks']);
  const scopes = ['write:events', 'read:accounts', 'write:accounts', 'write:logins'];
  const machine = await createTestClient(server, { scopes });
  const { accessToken } = await mintAccessToken(server, { client: machine, scopes });
  const ajv = documentAjv();
  const publisher = requester(server, accessToken);
  const ids = await makeSome(user, publisher);
  const manager = await createConsoleUser(server, { isAdmin: true });
  for (const [path, methods] of Object.entries<Schema>(document.paths)) {
    for (const [method, operation] of Object.entries<Schema>(methods)) {
      await t.test(operation.operationId, async () => {
        const chosen = isManagement(path)
          ? await makeManaged(manager)
          : path.includes('/recover')
            ? await makeRecoveries(user)
            : {};
        await fc.assert(
          fc.asyncProperty(requestFor(path, operation, ids, chosen), async ({ url, headers, raw }) => {
            const speaker = isManagement(path) ? manager.request : user.request;
            const isForMachines = path.startsWith('/events') || operation.tags.includes('accounts');
            const request = isForMachines ? publisher : speaker;
            const answer = await request(method.toUpperCase(), url, {
              headers,
              ...(raw === undefined ? {} : { raw }),
            });
            checkAnswer(ajv, operation, answer, `${method} ${url} ${raw ?? ''}`);
          }),
          { numRuns: runsEach },
        );
      });
    }
  }
});

test('the document covers responses without a token and without the scope', async () => {
  const ajv = documentAjv();
  const stranger = await createApiUser(server, ['read:profile']);
  for (const [path, methods] of Object.entries<Schema>(document.paths)) {
    for (const [method, operation] of Object.entries<Schema>(methods)) {
      const url = path.replaceAll(/\{\w+\}/g, '01981f6e-7c5a-7d3e-9f21-3b8a5d0c6e11');
      const without = await nobody(method.toUpperCase(), url);
      assert.equal(without.status, operation.security.length === 0 ? 200 : 401);
      checkAnswer(ajv, operation, without, url);
      checkAnswer(ajv, operation, await stranger.request(method.toUpperCase(), url), url);
    }
  }
});

test('the page loads everything from this server', async () => {
  const page = await fetch(`${server.baseUrl}/docs`);
  assert.equal(page.status, 200);
  const policy = page.headers.get('content-security-policy') ?? '';
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /http|\*|unsafe-eval/);
  const html = await page.text();
  const links = [...html.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, link]) => link as string);
  assert.ok(links.length >= 5);
  for (const link of links) {
    assert.doesNotMatch(link, /^(?:https?:)?\/\//);
    assert.equal((await fetch(new URL(link, page.url))).status, 200, link);
  }
  assert.equal((await fetch(`${server.baseUrl}/docs/oauth2-redirect.html`)).status, 200);
  assert.equal((await fetch(`${server.baseUrl}/docs/..%2f..%2fpackage.json`)).status, 404);
});

function documentAjv(): Ajv2020 {
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  addFormats.default(ajv);
  ajv.addSchema(document, 'document');
  return ajv;
}

/** Returns a schema of the document with references that resolve outside of the document. */
function rebased(schema: Schema): Schema {
  return JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"document#/'));
}

function resolve(reference: string): Schema {
  return reference
    .slice(2)
    .split('/')
    .reduce((value, name) => value[name], document);
}

async function makeSome(user: ApiUser, publisher: ReturnType<typeof requester>): Promise<string[]> {
  const ids: string[] = [];
  for (const [path, json] of [
    ['/articles', { title: 'x' }],
    ['/articles', { title: 'y' }],
    ['/bookmarks', { label: 'x', address: 'http://x' }],
    ['/tickets', { subject: 'x' }],
    ['/subscriptions', { url: 'http://127.0.0.1:4799/hook', kinds: ['ticket.*'] }],
  ] as const) {
    for (let count = 0; count < 10; count++) {
      const { status, body, text } = await user.request('POST', path, { json });
      assert.equal(status, 201, text);
      ids.push(body.id);
    }
  }
  // Deliveries of events of the sub-collection. Nothing listens at their URL.
  const subscription = ids.at(-1);
  for (let count = 0; count < 3; count++) {
    const { body } = await user.request('POST', `/subscriptions/${subscription}/test`);
    ids.push(body.delivery);
  }
  const { kind, body } = document.paths['/events'].post.requestBody.content['application/json'].example;
  for (let count = 0; count < 10; count++) {
    const {
      status,
      body: made,
      text,
    } = await publisher('POST', '/events', { json: { kind, account: user.account.id, body } });
    assert.equal(status, 202, text);
    ids.push(made.id);
  }
  return ids;
}

function isManagement(path: string): boolean {
  return /^\/(?:apps|app-invitations|admin)\b/.test(path);
}

/** Creates ids for the management operations, by path parameter. New for each operation, because some delete them. */
async function makeManaged(manager: ConsoleUser): Promise<Record<string, string[]>> {
  const chosen = { id: [] as string[], account: [] as string[], secret: [] as string[] };
  for (let count = 0; count < 3; count += 1) {
    const json = { client_name: 'Fuzzed', redirect_uris: ['https://fuzzed.example/'] };
    const made = await manager.request('POST', '/apps', { json });
    // The account has reached its limit.
    if (made.status === 409) break;
    assert.equal(made.status, 201, made.text);
    const second = await manager.request('POST', `/apps/${made.body.client_id}/secrets`);
    chosen.id.push(made.body.client_id);
    chosen.secret.push(made.body.secrets[0].id, second.body.id);
    for (const { email } of [manager.account, { email: `fuzzed-${count}@example.com` }]) {
      const path = `/apps/${made.body.client_id}/members/${encodeURIComponent(email)}`;
      await manager.request('PUT', path, { json: { role: 'owner' } });
      chosen.account.push(email);
    }
  }
  chosen.account.push(manager.account.id);
  if (chosen.id.length === 0) chosen.id.push('none');
  return chosen;
}

/** A recovery needs a matching subscription id. Few ids of each make matches likely. */
async function makeRecoveries(user: ApiUser): Promise<Record<string, string[]>> {
  const subscription = await user.request('POST', '/subscriptions', {
    json: { url: 'http://127.0.0.1:4799/hook', kinds: ['ticket.*'] },
  });
  const { id } = subscription.body;
  const recover = () =>
    user.request('POST', `/subscriptions/${id}/recover`, { json: { since: '2026-01-01T00:00:00Z' } });
  return { id: [id], job: [(await recover()).body.id, (await recover()).body.id] };
}

/** Text that remains one path segment. An empty segment or one of dots changes the path. */
const segment = fc.string().filter((text) => !/^\.{0,2}$/.test(text));

function requestFor(
  path: string,
  operation: Schema,
  ids: readonly string[],
  /** Values for single parameters, instead of `ids`. */
  chosen: Readonly<Record<string, readonly string[]>> = {},
): fc.Arbitrary<{ url: string; headers: Record<string, string>; raw?: string }> {
  const parameters: Schema[] = operation.parameters;
  const idOrNot = (name: string) =>
    fc.oneof(
      { weight: 5, arbitrary: fc.constantFrom(...(chosen[name] ?? ids)) },
      { weight: 1, arbitrary: segment },
    );
  const pathValues = fc.record(
    Object.fromEntries(
      parameters.filter((each) => each.in === 'path').map((each) => [each.name, idOrNot(each.name)]),
    ),
  );
  const query = fc.record(
    Object.fromEntries(
      parameters
        .filter((each) => each.in === 'query')
        .map((each) => [each.name, anything(each.schema, resolve)]),
    ),
    { requiredKeys: [] },
  );
  const headers = fc.record(
    Object.fromEntries(
      parameters
        .filter((each) => each.in === 'header')
        .map((each) => [
          each.name,
          fc.oneof(fc.constantFrom('*', '"x"', 'k1'), fc.stringMatching(/^[\x21-\x7e]{1,40}$/)),
        ]),
    ),
    { requiredKeys: [] },
  );
  return fc
    .tuple(pathValues, query, headers, bodyFor(operation))
    .map(([inPath, inQuery, inHeaders, body]) => {
      const filled = Object.entries(inPath).reduce(
        (text, [name, value]) =>
          text.replace(`{${name}}`, encodeURIComponent((value as string).toWellFormed() || 'x')),
        path,
      );
      const search = new URLSearchParams(
        Object.entries(inQuery).map(([name, value]) => [
          name,
          typeof value === 'string' ? value : JSON.stringify(value),
        ]),
      ).toString();
      return {
        url: `${filled}${search === '' ? '' : `?${search}`}`,
        headers: {
          ...(inHeaders as Record<string, string>),
          ...(body === undefined ? {} : { 'content-type': body.type }),
        },
        ...(body === undefined ? {} : { raw: body.text }),
      };
    });
}

function bodyFor(operation: Schema): fc.Arbitrary<{ type: string; text: string } | undefined> {
  const content = operation.requestBody?.content as Record<string, Schema> | undefined;
  if (content === undefined) return fc.constant(undefined);
  const bodies = Object.entries(content).flatMap(([type, { schema }]) => [
    {
      weight: 3,
      arbitrary: fitting(schema, resolve).map((value) => ({ type, text: JSON.stringify(value) })),
    },
    {
      weight: 3,
      arbitrary: anything(schema, resolve).map((value) => ({ type, text: JSON.stringify(value) })),
    },
    { weight: 1, arbitrary: fc.string().map((text) => ({ type, text })) },
  ]);
  return fc.oneof(...bodies, { weight: 1, arbitrary: fc.constant({ type: 'text/plain', text: 'x' }) });
}

function checkAnswer(ajv: Ajv2020, operation: Schema, answer: ApiResponse, what: string): void {
  const described = operation.responses[answer.status];
  assert.ok(described, `${what}: ${answer.status} is not described: ${answer.text.slice(0, 300)}`);
  assert.ok(answer.status < 500, `${what}: ${answer.text}`);
  const response: Schema = described.$ref === undefined ? described : resolve(described.$ref);
  const type = answer.headers.get('content-type')?.split(';')[0];
  if (response.content === undefined) {
    assert.equal(answer.text, '', what);
    return;
  }
  const schema = response.content[type ?? ''];
  assert.ok(schema, `${what}: ${type} is not described for ${answer.status}`);
  const validate = compiled(ajv, schema.schema);
  assert.ok(
    validate(answer.body),
    `${what}: ${ajv.errorsText(validate.errors)}: ${answer.text.slice(0, 300)}`,
  );
}

const validators = new Map<string, ReturnType<Ajv2020['compile']>>();

function compiled(ajv: Ajv2020, schema: Schema) {
  const key = JSON.stringify(schema);
  const known = validators.get(key) ?? ajv.compile(rebased(schema));
  validators.set(key, known);
  return known;
}
