/** Attack: read the whole database after agents subscribed, failed and were withdrawn, and look for every secret of the run. */

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { readConnections } from '../../src/connections/connection_store.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { afterEcho, startCallback, trySubscribe } from '../support/clients/agent_callback.ts';
import {
  callMcp,
  callTool,
  postMcp,
  statelessHeaders,
  statelessMeta,
} from '../support/clients/mcp_client.ts';
import { authorize, createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, publish, until } from '../support/webhooks/apps.ts';
import { answer } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const newSecret = () => `whsec_${randomBytes(32).toString('base64')}`;

/** The text, its bytes in hexadecimal digits, and those of a webhook secret's key. */
function formsOf(secret: string): string[] {
  const forms = [secret, Buffer.from(secret).toString('hex')];
  if (!secret.startsWith('whsec_')) return forms;
  const key = secret.slice('whsec_'.length);
  return [
    ...forms,
    key,
    Buffer.from(key, 'base64').toString('hex'),
    Buffer.from(key, 'base64').toString('base64url'),
  ];
}

async function tablesWith(text: string): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select format('%I.%I', schemaname, tablename) as name from pg_tables
    where schemaname not in ('pg_catalog', 'information_schema')`.execute(db);
  const found: string[] = [];
  for (const { name } of rows) {
    const { rows: hits } = await sql`
      select from ${sql.raw(name)} t where exists (
        select from unnest(${formsOf(text)}::text[]) as form where strpos(t::text, form) > 0) limit 1`.execute(
      db,
    );
    if (hits.length > 0) found.push(name);
  }
  return found;
}

test('attack: no table has a secret of an agent, also where it sent one in the wrong place', async (t) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { authMethod: 'none' });
  const parameters = { resource: `${server.baseUrl}/mcp` };
  const {
    accessToken: token,
    refreshToken,
    grantId,
  } = await authorize(server, {
    ...{ account, client, parameters },
    scopes: ['read:posts', 'write:posts'],
  });
  const [secret, rotated, misplaced] = [newSecret(), newSecret(), newSecret()];
  const callback = await startCallback(t);
  const made = await trySubscribe(server, { token }, callback.url, { delivery: { secret } });
  assert.ok(made.body.result);
  assert.ok(
    (await trySubscribe(server, { token }, callback.url, { delivery: { secret: rotated } })).body.result,
  );
  await publish(await createPublisher(server), account, ['told']);
  await until(
    async () => callback.occurrences().length,
    (count) => count === 1,
  );
  const challenge = JSON.parse(callback.challenges()[0]?.body ?? '').challenge as string;

  // Each in the wrong place, and each refused.
  const inPath = encodeURIComponent(misplaced);
  const failing = await startCallback(t, answer(500, { 'x-reason': misplaced }));
  const refused = [
    await trySubscribe(server, { token }, misplaced),
    await trySubscribe(server, { token }, `${failing.url}/${inPath}?key=${inPath}`),
    await trySubscribe(server, { token }, callback.url, { name: misplaced }),
    await trySubscribe(server, { token }, callback.url, { cursor: misplaced }),
    await trySubscribe(server, { token }, callback.url, { arguments: { [misplaced]: misplaced } }),
    await trySubscribe(server, { token }, callback.url, { delivery: { mode: misplaced } }),
    await callMcp(server, token, misplaced),
    await callMcp(server, token, 'tools/call', { name: misplaced }),
    await postMcp(server, misplaced, { jsonrpc: '2.0', id: 1, method: 'ping' }),
    await postMcp(
      server,
      token,
      { jsonrpc: '2.0', id: 1, method: misplaced },
      { 'mcp-protocol-version': misplaced },
    ),
    await postMcp(server, token, `{"a":1,"${misplaced}":1,"${misplaced}":2}`),
    await postMcp(
      server,
      token,
      { jsonrpc: '2.0', id: 1, method: 'ping' },
      { origin: `https://${'a'.repeat(20)}.example` },
    ),
    await postMcp(
      server,
      token,
      { jsonrpc: '2.0', id: 1, method: misplaced, params: { _meta: statelessMeta } },
      { ...statelessHeaders('ping'), 'mcp-method': 'other' },
    ),
  ];
  for (const { body, status } of refused)
    assert.ok(status >= 400 || body.error !== undefined, JSON.stringify(body));
  assert.equal((await callTool(server, token, 'article_get', { id: misplaced })).isError, true);
  callback.behave(afterEcho(answer(204)));
  await withdrawGrant(db, grantId, 'user');
  await until(
    async () => callback.received.filter(({ body }) => JSON.parse(body).type === 'terminated').length,
    (count) => count === 1,
  );
  // The steps of the trace are stored behind the requests.
  await until(
    () => readConnections(db, { clientId: client.id }, 1),
    ([found]) => found?.steps.some(({ error }) => error === 'challenge-failed') === true,
  );

  const secrets = { token, refreshToken, secret, rotated, misplaced, challenge, password: account.password };
  const found: string[] = [];
  for (const [name, value] of Object.entries(secrets)) {
    assert.ok(value.length >= 12, name);
    for (const table of await tablesWith(value)) found.push(`${table}: ${name}`);
  }
  assert.deepEqual(found, []);
  assert.ok(
    (await tablesWith(client.id)).some((table) => table.endsWith('connections')),
    'the search finds rows',
  );
  // A secret that is not sealed would be found.
  await sql`create table nuncio_search (t text)`.execute(db);
  await sql`insert into nuncio_search values (${Buffer.from(secret.slice(6), 'base64').toString('hex')})`.execute(
    db,
  );
  assert.equal((await tablesWith(secret)).length, 1);
});
