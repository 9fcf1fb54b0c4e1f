/** Who may call which route: every route is declared, and refuses all other callers. */

import assert from 'node:assert/strict';
import diagnostics from 'node:diagnostics_channel';
import { after, test } from 'node:test';
import type { FastifyInstance } from 'fastify';
import { sql } from 'kysely';
import { otherAddresses } from '../../scripts/reference/other_addresses.ts';
import type { Operation } from '../../src/http/operation.ts';
import { referenceParts } from '../../src/reference_parts.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { clientToken, createTestClient } from '../support/clients/oauth.ts';
import { testPlatform, testScopes } from '../support/servers/platform.ts';
import { startTestServer } from '../support/servers/server.ts';

interface RegisteredRoute {
  method: string;
  url: string;
  operation: Operation | undefined;
}

const routes: RegisteredRoute[] = [];
const onInitialization = (message: unknown) => {
  (message as { fastify: FastifyInstance }).fastify.addHook('onRoute', ({ method, url, config }) => {
    for (const each of [method].flat()) routes.push({ method: each, url, operation: config?.operation });
  });
};
diagnostics.subscribe('fastify.initialization', onInitialization);
const server = await startTestServer({ after }, {}, 'dev', testPlatform);
diagnostics.unsubscribe('fastify.initialization', onInitialization);

const operations = referenceParts(testPlatform).flatMap((part) => part.operations);
const nameOf = ({ method, path }: Operation) => `${method.toUpperCase()} ${path}`;

/** Routes outside the API. The platform of the tests has no endpoint for agents. */
const outside = Object.keys(otherAddresses).filter((path) => path !== '/mcp');

test('every route declares its operation or is known to be outside the API', () => {
  const unknown = routes
    .filter(({ method, operation }) => method !== 'OPTIONS' && operation === undefined)
    .filter(({ url }) => !outside.some((path) => url === path || url.startsWith(`${path}/`)));
  assert.deepEqual(unknown, []);
  const names = new Set(routes.map(({ url }) => `/${url.split('/')[1]}`));
  assert.deepEqual(
    outside.filter((path) => !names.has(path)),
    [],
  );
});

test('the reference describes the routes that are served, and no others', () => {
  const served = routes.flatMap(({ operation }) => (operation === undefined ? [] : [nameOf(operation)]));
  assert.deepEqual([...new Set(served)].sort(), operations.map(nameOf).sort());
  for (const { method, url, operation } of routes) {
    if (operation === undefined) continue;
    assert.equal(url.replaceAll(/:(\w+)/g, '{$1}'), operation.path);
    assert.ok(method === operation.method.toUpperCase() || method === 'HEAD', `${method} ${url}`);
  }
});

/** A request that the admission refuses before it looks at the rest. */
function call(token: string | undefined, { method, path, body }: Operation) {
  const url = path.replaceAll(/\{\w+\}/g, '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88');
  const type = body?.types[0];
  const sent = type === undefined ? {} : { raw: '{}', headers: { 'content-type': type } };
  return requester(server, token)(method.toUpperCase(), url, sent);
}

test('an operation refuses callers without a token, and tokens without its scopes', async () => {
  const { accessToken } = await createApiUser(server, ['read:profile']);
  for (const operation of operations) {
    const { audience, scopes } = operation.admission;
    const anonymous = await call(undefined, operation);
    assert.equal(anonymous.status, audience === 'anyone' ? 200 : 401, nameOf(operation));
    if (scopes.length === 0) continue;
    const { status, headers } = await call(accessToken, operation);
    assert.equal(status, 403, nameOf(operation));
    assert.match(String(headers.get('www-authenticate')), /insufficient_scope/, nameOf(operation));
  }
});

test('operations for machines and administrators refuse users who have the scopes', async () => {
  const scopes = [...testScopes, 'admin', 'read:accounts', 'write:accounts', 'write:logins', 'write:events'];
  const { accessToken } = await createApiUser(server, scopes);
  let count = 0;
  for (const operation of operations) {
    const { audience } = operation.admission;
    if (audience !== 'machine' && audience !== 'administrator') continue;
    count += 1;
    const { status, body } = await call(accessToken, operation);
    const code = audience === 'machine' ? 'not-a-machine' : 'not-an-admin';
    assert.deepEqual([status, body.code], [403, code], nameOf(operation));
  }
  assert.ok(count > 20, String(count));
});

test('operations for machines refuse a client whose registration has lost the scope', async () => {
  const all = ['read:accounts', 'write:accounts', 'write:logins'];
  const client = await createTestClient(server, { scopes: all, grantTypes: ['client_credentials'] });
  const token = await clientToken(server, client, all);
  await sql`update clients set scopes = '{}' where id = ${client.id}`.execute(server.db);
  for (const operation of operations) {
    const [scope] = operation.admission.scopes;
    if (operation.admission.audience !== 'machine' || !all.includes(String(scope))) continue;
    const { status } = await call(token, operation);
    assert.equal(status, 403, nameOf(operation));
  }
});
