/** `nuncio client rotate-secret`: replaces a secret without an interruption. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { clientRotateSecret } from '../../src/commands/client_rotate_secret.ts';
import { CommandError, UsageError } from '../../src/commands/command.ts';
import { createTestClient, postForm, type TestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });

/** Runs the command beside the running server. */
async function rotate(id: string, values: Record<string, string | boolean> = {}): Promise<string[]> {
  const lines: string[] = [];
  await clientRotateSecret.run(
    { values, positionals: [id] },
    {
      config: { ...server.config, databaseUrl: server.databaseUrl },
      print: (line) => lines.push(line),
      printError: () => {},
    },
  );
  return lines;
}

async function statusOf(client: TestClient, secret: string | null): Promise<number> {
  const form = { grant_type: 'client_credentials' };
  return (await postForm(server, '/oauth/token', { ...client, secret }, form)).status;
}

/** Waits until the server, which the database notifies of the change, returns this status. */
async function untilStatus(client: TestClient, secret: string | null, status: number): Promise<void> {
  while ((await statusOf(client, secret)) !== status) await new Promise((resolve) => setTimeout(resolve, 20));
}

test('the new secret works at once, the previous one until the overlap ends, older ones never', async () => {
  const client = await createTestClient(server);
  const [line = ''] = await rotate(client.id);
  const second = /^client_secret {2}(\S{43})$/.exec(line)?.[1] ?? '';
  await untilStatus(client, second, 200);
  assert.equal(await statusOf(client, client.secret), 200);
  const { rows } = await sql<{ hours: number }>`
    select round(extract(epoch from expires_at - now()) / 3600)::int as hours
    from client_secrets where client_id = ${client.id} and expires_at is not null`.execute(server.db);
  assert.deepEqual(rows, [{ hours: 24 }]);

  const { client_id, client_secret } = JSON.parse((await rotate(client.id, { json: true })).join());
  assert.equal(client_id, client.id);
  await untilStatus(client, client_secret, 200);
  assert.equal(await statusOf(client, second), 200);
  await untilStatus(client, client.secret, 401);
});

test('the previous secret ends at once without an overlap', async () => {
  const client = await createTestClient(server);
  const { client_secret } = JSON.parse((await rotate(client.id, { json: true, overlap: '0s' })).join());
  await untilStatus(client, client_secret, 200);
  await untilStatus(client, client.secret, 401);
});

test('an unknown client, one without a secret and too long an overlap are refused', async () => {
  const open = await createTestClient(server, { authMethod: 'none', grantTypes: ['authorization_code'] });
  const fails = (id: string, values: Record<string, string>, kind: new () => Error, message: RegExp) =>
    assert.rejects(rotate(id, values), (error) => error instanceof kind && message.test(error.message));
  await fails(open.id, {}, CommandError, /has no secret: its authentication method is none/);
  await fails('nobody', {}, CommandError, /client "nobody" not found/);
  await fails(open.id, { overlap: 'soon' }, UsageError, /--overlap/);
  await fails(open.id, { overlap: '31d' }, UsageError, /--overlap/);
});
