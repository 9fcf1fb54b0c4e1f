/** What an invalid body of a megabyte may cost: errors are looked for up to the first, and the response is small. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import Type from 'typebox';
import { compileBodySchema } from '../../src/http/body_schema.ts';
import { errorsMax } from '../../src/http/problem.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const scopes = ['read:posts', 'write:posts', 'read:webhooks', 'write:webhooks', 'read:apps', 'write:apps'];
const ada = await createApiUser(server, scopes);
const headers = { 'content-type': 'application/json' };
const items = (text: string) => `[${Array(100_000).fill(text).join(',')}]`;
const names = Array.from({ length: 60_000 }, (_, index) => `"x${index}":1`).join(',');
const longName = '\\ud800'.repeat(1_000);

for (const [path, name, raw] of [
  ['/subscriptions', 'wrong items', `{"url":"https://example.com/","kinds":${items('1')}}`],
  ['/subscriptions', 'unknown members', `{"url":1,${names}}`],
  ['/articles', 'unknown members', `{"title":1,${names}}`],
  ['/apps', 'wrong items', `{"client_name":"A","redirect_uris":${items('1')}}`],
  ['/apps', 'unknown members', `{${names}}`],
  ['/articles', 'bad text in a long place', `{"${'x'.repeat(900_000)}":[${Array(20).fill('"\\u0000"')}]}`],
  ['/articles', 'bad names', `{"${longName}":1,"title":${items('"\\u0000"')}}`],
] as const) {
  test(`a body with many ${name} at ${path} gets a small response`, async () => {
    const { status, body } = await ada.request('POST', path, { raw, headers });
    assert.equal(status, 422);
    assert.ok(body.errors.length >= 1 && body.errors.length <= errorsMax, `${body.errors.length} errors`);
    assert.ok(JSON.stringify(body).length < 1_048_576);
  });
}

test('validation of a large body stops at the first error, and a small body gets all errors', () => {
  const check = compileBodySchema(Type.Object({ items: Type.Array(Type.String()) }));
  let reads = 0;
  const counted = (length: number) =>
    new Proxy(Array(length).fill(1), {
      get(target, name) {
        reads += 1;
        return Reflect.get(target, name);
      },
    });
  assert.equal(check({ items: counted(100_000) }).length, 1);
  assert.ok(reads < 100, `${reads} reads`);
  assert.deepEqual(
    check({ items: [1, 'a', 2] }).map(({ pointer }) => pointer),
    ['/items/0', '/items/2'],
  );
  assert.equal(check({ items: Array(1_000).fill(1) }).length, errorsMax);
  assert.deepEqual(check({ items: [] }), []);
});
