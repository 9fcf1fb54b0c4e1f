/** What traces say about requests over a rate limit, and what a flood of them can do. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { consoleClientId } from '../../src/clients/own_clients.ts';
import { readConnections } from '../../src/connections/connection_store.ts';
import {
  authorizationUrl,
  createTestAccount,
  createTestClient,
  obtainCodeForm,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { startOfMinute } from '../support/values/minute.ts';
import { until } from '../support/webhooks/apps.ts';

const limit = 4;
const server = await startTestServer(
  { after },
  { NUNCIO_RATE_LIMIT: String(limit), NUNCIO_TRUST_PROXY: '127.0.0.1,::1' },
);
const { db } = server;
const account = await createTestAccount(server);

/** Waits for the connection of a request. Read from the database, because the API has the limit, too. */
async function connectionOf(requestId: string | null) {
  const [found] = await until(
    () => readConnections(db, { requestId }, 1),
    ([first]) => first !== undefined,
  );
  const refused = found?.steps.find(({ request }) => request === requestId);
  assert.ok(found !== undefined && refused?.outcome === 'refused');
  return { ...found, client: found.clientId, refused };
}

let networks = 0;
/** An address in a network of its own. */
function newAddress(): { 'x-forwarded-for': string } {
  networks += 1;
  return { 'x-forwarded-for': `2001:db8:${networks.toString(16)}::1` };
}

type Sender = Parameters<typeof postForm>[2];

/** Sends token requests until one is over the limit. */
async function exceed(client: Sender, form: Record<string, string>, headers: Record<string, string>) {
  for (let count = 0; count <= 10 * limit; count += 1) {
    const response = await postForm(server, '/oauth/token', client, form, headers);
    if (response.status === 429) return response;
  }
  return assert.fail('no limit');
}

/** Waits until all steps that were reported so far are written: steps are written in their order. */
async function settle(): Promise<void> {
  const { headers } = await fetch(
    authorizationUrl(server, { id: 'marker', redirectUri: 'https://x.example/' }, {}),
    {
      headers: newAddress(),
    },
  );
  await connectionOf(headers.get('request-id'));
}

const machine = { grant_type: 'client_credentials' };

test('a token request over the limit of its app is a refused token with a remedy', async () => {
  const client = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  await startOfMinute();
  const { headers } = await exceed(client, machine, newAddress());
  const { client: shown, outcome, refused } = await connectionOf(headers.get('request-id'));
  assert.equal(shown, client.id);
  assert.equal(outcome, 'refused');
  assert.deepEqual([refused.name, refused.error], ['token', 'temporarily_unavailable']);
  assert.match(
    refused.explanation ?? '',
    /^The limit is 40 requests per minute\. It counts the requests of the app .*Use each access token until it expires\. Wait for the seconds in Retry-After/,
  );
});

test('a code that a limit refuses is explained in its own connection, which then connects', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const { form } = await obtainCodeForm(server, { account, client, scopes: ['read:posts'] });
  const address = newAddress();
  await startOfMinute();
  const made = { ...form, code: 'x'.repeat(43) };
  for (let count = 0; count < limit; count += 1)
    await postForm(server, '/oauth/token', client, made, address);
  const { status, headers } = await postForm(server, '/oauth/token', client, form, address);
  assert.equal(status, 429);
  const connection = await connectionOf(headers.get('request-id'));
  assert.deepEqual(
    connection.steps.map(({ name, outcome }) => `${name} ${outcome}`),
    ['authorize ok', 'sign-in ok', 'consent ok', 'code ok', 'token refused'],
  );
  assert.match(
    connection.refused.explanation ?? '',
    /apps without credentials at one address.*NUNCIO_TRUST_PROXY/,
  );
  // From another address, as after the minute.
  assert.equal((await postForm(server, '/oauth/token', client, form, newAddress())).status, 200);
  await until(
    () => connectionOf(headers.get('request-id')),
    ({ outcome }) => outcome === 'connected',
  );
});

test('wrong credentials over the limit of an address say so', async () => {
  const client = await createTestClient(server);
  await startOfMinute();
  const { headers } = await exceed({ ...client, secret: 'wrong' }, machine, newAddress());
  const { client: shown, refused } = await connectionOf(headers.get('request-id'));
  assert.equal(shown, client.id);
  assert.match(refused.explanation ?? '', /refused because no app authenticated\. Correct the client_id/);
});

test('an authorization, pushed or device request over the limit is a refused authorization', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  // The cache has it.
  await postForm(server, '/oauth/token', client, machine);
  const send: Record<string, (headers: Record<string, string>) => Promise<Response>> = {
    authorize: (headers) => fetch(authorizationUrl(server, client, {}), { redirect: 'manual', headers }),
    par: (headers) =>
      fetch(`${server.baseUrl}/oauth/par`, {
        method: 'POST',
        headers,
        body: new URLSearchParams({ client_id: client.id }),
      }),
    device: (headers) => fetch(`${server.baseUrl}/oauth/device`, { method: 'POST', headers }),
  };
  await startOfMinute();
  for (const [name, request] of Object.entries(send)) {
    const address = newAddress();
    let response = await request(address);
    for (let count = 0; count < limit && response.status !== 429; count += 1) {
      await response.arrayBuffer();
      response = await request(address);
    }
    assert.equal(response.status, 429, name);
    const { client: shown, refused } = await connectionOf(response.headers.get('request-id'));
    // This one names no app.
    assert.equal(shown, name === 'device' ? null : client.id, name);
    assert.deepEqual([refused.name, refused.error], ['authorize', 'temporarily_unavailable']);
    assert.match(
      refused.explanation ?? '',
      /The limit is 4 requests.*begin at one address.*NUNCIO_TRUST_PROXY/,
    );
  }
});

test('attack: a flood over the limit leaves one step for its address and app', async () => {
  const client = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  await startOfMinute();
  const address = newAddress();
  await exceed(client, machine, address);
  await settle();
  const { rows: before } = await sql<{ n: number }>`select count(*)::int as n from connections`.execute(db);
  const flood = await Promise.all(
    Array.from({ length: 300 }, () => postForm(server, '/oauth/token', client, machine, address)),
  );
  assert.ok(flood.every(({ status }) => status === 429));
  // Made-up ids share one step, whatever they are.
  const strange = newAddress();
  const other = { id: 'made-up', secret: 'x', authMethod: 'client_secret_basic' } as const;
  await exceed(other, machine, strange);
  for (let count = 0; count < 100; count += 1)
    await postForm(server, '/oauth/token', { ...other, id: `made-up-${count}` }, machine, strange);
  await settle();
  const found = await readConnections(db, { clientId: client.id }, 100);
  const limited = found.filter(({ steps }) => steps.some(({ error }) => error === 'temporarily_unavailable'));
  assert.equal(limited.length, 1);
  assert.equal(limited[0]?.steps.length, 1);
  const { rows: after_ } = await sql<{ n: number }>`select count(*)::int as n from connections`.execute(db);
  // The failures of the stranger up to the limit, one step over it, and the marker.
  assert.ok((after_[0]?.n ?? 0) - (before[0]?.n ?? 0) <= limit + 2, `${before[0]?.n} ${after_[0]?.n}`);
});

test('a request over the limit waits for no query, whichever app it names', async () => {
  const client = await createTestClient(server, { grantTypes: ['client_credentials'] });
  const unread = await createTestClient(server);
  const address = newAddress();
  await startOfMinute();
  await exceed({ ...client, secret: 'wrong' }, machine, address);
  await db.transaction().execute(async (tx) => {
    await sql`lock table clients, client_secrets, connections, interactions in access exclusive mode`.execute(
      tx,
    );
    for (const id of [client.id, 'not-cached', unread.id]) {
      const response = await fetch(`${server.baseUrl}/oauth/token`, {
        method: 'POST',
        headers: address,
        body: new URLSearchParams({ ...machine, client_id: id }),
        signal: AbortSignal.timeout(4_000),
      });
      assert.equal(response.status, 429, id);
    }
  });
});

test('attack: refused requests with the id of another app leave its connections alone', async () => {
  const victim = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
  });
  assert.equal((await postForm(server, '/oauth/token', victim, machine, newAddress())).status, 200);
  const wrong = { ...victim, secret: 'wrong' };
  for (let count = 0; count < 30; count += 1) {
    const address = newAddress();
    await startOfMinute();
    await exceed(wrong, machine, address);
  }
  await settle();
  const found = await readConnections(db, { clientId: victim.id }, 1_000);
  // The machine's own connection is not refused by what a stranger sends.
  const connected = found.filter(({ outcome }) => outcome === 'connected');
  assert.deepEqual(
    connected.map(({ steps }) => steps.map(({ name, outcome }) => `${name} ${outcome}`)),
    [['token ok']],
  );
  const strange = found
    .flatMap(({ steps }) => steps)
    .filter(({ error }) => error === 'temporarily_unavailable');
  assert.ok(strange.length <= 30, String(strange.length));
  // The app still gets its steps.
  const refused = await postForm(
    server,
    '/oauth/token',
    victim,
    { ...machine, scope: 'write:posts' },
    newAddress(),
  );
  assert.equal(refused.status, 400);
  assert.equal((await connectionOf(refused.headers.get('request-id'))).refused.error, 'invalid_scope');
});

test('attack: a secret in the place of the client_id is not stored, and the console has no trace', async () => {
  const secret = Buffer.from('a secret of an app in the place of its id').toString('base64url');
  const address = newAddress();
  await startOfMinute();
  const sender = { id: secret, secret: 'x', authMethod: 'client_secret_basic' } as const;
  const code = 'a-code-that-is-nobodys-0123456789abcdefghij';
  const { headers } = await exceed(sender, { ...machine, code, client_assertion: code }, address);
  const { client } = await connectionOf(headers.get('request-id'));
  assert.equal(client, null);
  const { rows } = await sql`
    select from connections c where strpos(c::text, ${secret}) > 0 or strpos(c::text, ${code}) > 0`.execute(
    db,
  );
  assert.equal(rows.length, 0);
  const own = { id: consoleClientId, secret: null, authMethod: 'none' } as const;
  await exceed(own, { grant_type: 'refresh_token', refresh_token: 'x' }, newAddress());
  await settle();
  assert.deepEqual(await readConnections(db, { clientId: consoleClientId }, 9), []);
});
