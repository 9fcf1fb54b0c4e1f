/**
 * `examples/own-api` as a process beside a real Nuncio server: notes stay in the application's own database, an app
 * reads and writes them with a user's permission, and webhooks report changes.
 */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { Webhook } from 'standardwebhooks';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { loadPlatform } from '../../src/platform.ts';
import { authorize, createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const port = await freePort();
const url = `http://localhost:${port}`;
// The example's own setting: the URL of its API, and the resource of its tokens.
process.env.NOTES_URL = url;
const platform = await loadPlatform(
  fileURLToPath(new URL('../../examples/own-api/nuncio.config.ts', import.meta.url)),
);
const main = fileURLToPath(new URL('../../examples/own-api/main.ts', import.meta.url));
const server = await startTestServer({ after }, {}, 'dev', platform);
const scopes = ['read:notes', 'write:notes', 'read:webhooks', 'write:webhooks'];
const app = await createTestClient(server, { scopes });
const notesClient = await createTestClient(server, {
  grantTypes: ['client_credentials'],
  scopes: ['write:events', 'read:tokens'],
  redirectUris: [],
});
const folder = await mkdtemp(join(tmpdir(), 'nuncio-notes-'));
let child = await startNotes();
after(async () => {
  await end('SIGKILL');
  await rm(folder, { recursive: true, force: true });
});

async function startNotes(): Promise<ChildProcess> {
  const started = spawn(process.execPath, [main], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      PATH: process.env.PATH,
      NUNCIO_BASE_URL: server.baseUrl,
      NOTES_CLIENT_ID: notesClient.id,
      NOTES_CLIENT_SECRET: notesClient.secret ?? '',
      NOTES_PORT: String(port),
      NOTES_FILE: join(folder, 'notes.sqlite'),
    },
  });
  await once(started.stdout as NodeJS.ReadableStream, 'data');
  return started;
}

async function end(signal: NodeJS.Signals): Promise<number | null> {
  if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
  child.kill(signal);
  const [code] = await once(child, 'exit');
  return code;
}

async function createUser(granted: readonly string[] = scopes) {
  const account = await createTestAccount(server);
  const flow = { account, client: app, scopes: granted };
  // A token is valid for one API: the notes, or the server's own API, where apps subscribe.
  const forNotes = await authorize(server, { ...flow, parameters: { resource: url } });
  const forServer = await authorize(server, flow);
  const request = async (method: string, target: string, body?: unknown) => {
    const { accessToken } = target.startsWith(`${server.baseUrl}/`) ? forServer : forNotes;
    const response = await fetch(target, {
      method,
      headers: { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, body: text === '' ? null : JSON.parse(text) };
  };
  return { account, grantId: forNotes.grantId, request };
}

test('an app writes, reads and deletes a user’s notes, and nobody else’s', async () => {
  const [ann, ben] = [await createUser(), await createUser()];
  const { status, body: note } = await ann.request('POST', `${url}/notes`, { text: 'Buy milk' });
  assert.equal(status, 201);
  assert.equal(note.text, 'Buy milk');
  assert.deepEqual((await ann.request('GET', `${url}/notes`)).body, { items: [note] });
  assert.deepEqual((await ben.request('GET', `${url}/notes`)).body, { items: [] });
  assert.equal((await ben.request('DELETE', `${url}/notes/${note.id}`)).status, 404);
  assert.equal((await ann.request('DELETE', `${url}/notes/${note.id}`)).status, 204);
  assert.deepEqual((await ann.request('GET', `${url}/notes`)).body, { items: [] });
});

test('an invalid note, an unknown method, a missing permission and another user’s note are refused', async () => {
  const ann = await createUser();
  for (const body of [{}, { text: '' }, { text: 7 }, { text: 'x'.repeat(10_001) }, [], 'x'.repeat(70_000)]) {
    assert.equal((await ann.request('POST', `${url}/notes`, body)).status, 422);
  }
  assert.equal((await ann.request('PUT', `${url}/notes`)).status, 405);
  assert.equal((await ann.request('GET', `${url}/elsewhere`)).status, 404);
  const reader = await createUser(['read:notes']);
  assert.equal((await reader.request('POST', `${url}/notes`, { text: 'no' })).status, 403);
  assert.equal((await fetch(`${url}/notes`)).status, 401);
  const metadata = await fetch(`${url}/.well-known/oauth-protected-resource`);
  assert.deepEqual(((await metadata.json()) as { resource: string }).resource, url);
});

test('the app’s subscription gets a note’s event and ends with the permission', async (t) => {
  const subscriber = await startSubscriber(t);
  const ann = await createUser();
  const subscribed = await ann.request('POST', `${server.baseUrl}/subscriptions`, {
    url: subscriber.url,
    kinds: ['note.*'],
    signature: 'standard',
  });
  assert.equal(subscribed.status, 201);
  const { secret } = subscribed.body as { secret: string };
  const { body: note } = await ann.request('POST', `${url}/notes`, { text: 'Tell them' });
  const [delivery] = await subscriber.waitFor(1);
  assert.ok(delivery);
  assert.equal(delivery.headers['nuncio-event'], 'note.created');
  const verified = new Webhook(secret).verify(delivery.body, delivery.headers as Record<string, string>);
  assert.deepEqual(verified, { note });

  await withdrawGrant(server.db, ann.grantId, 'user');
  await until(
    () => ann.request('GET', `${url}/notes`),
    ({ status }) => status === 401,
  );
});

test('notes publish each event once when the API restarts after kill -9', async () => {
  const ann = await createUser();
  const notes: string[] = [];
  for (let count = 0; count < 10; count += 1) {
    const { body } = await ann.request('POST', `${url}/notes`, { text: `Note ${count}` });
    notes.push(body.id);
    if (count % 3 === 2) {
      await end('SIGKILL');
      child = await startNotes();
    }
  }
  const published = await until(
    async () => {
      const { rows } = await sql<{ note: string }>`
        select body::json -> 'note' ->> 'id' as note from events
        where account_id = ${ann.account.id} and kind = 'note.created' order by position`.execute(server.db);
      return rows.map(({ note }) => note);
    },
    (ids) => ids.length >= notes.length,
  );
  assert.deepEqual(published, notes);
});

test('an event that is never accepted blocks no other', async () => {
  const [gone, ann] = [await createUser(), await createUser()];
  // The example caches the token, so it stays valid for a while after the account is deleted.
  await gone.request('GET', `${url}/notes`);
  await sql`delete from accounts where id = ${gone.account.id}`.execute(server.db);
  assert.equal((await gone.request('POST', `${url}/notes`, { text: 'too late' })).status, 201);
  const { body: note } = await ann.request('POST', `${url}/notes`, { text: 'in time' });
  await until(
    async () => {
      const { rows } = await sql`
        select from events where account_id = ${ann.account.id} and body like ${`%${note.id}%`}`.execute(
        server.db,
      );
      return rows.length;
    },
    (count) => count === 1,
  );
});

test('the API shuts down in order', async () => {
  assert.equal(await end('SIGTERM'), 0);
});
