/** `nuncio connections`: an operator finds an attempt by the request id of an error page. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { UsageError } from '../../src/commands/command.ts';
import { connections } from '../../src/commands/connections.ts';
import { readConnections } from '../../src/connections/connection_store.ts';
import { startCallback, trySubscribe } from '../support/clients/agent_callback.ts';
import {
  authorizationUrl,
  authorize,
  createTestAccount,
  createTestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, publish, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });

async function run(values: Record<string, string | boolean>): Promise<string[]> {
  const lines: string[] = [];
  const config = { ...server.config, databaseUrl: server.databaseUrl };
  const print = (line: string) => lines.push(line);
  await connections.run({ values, positionals: [] }, { config, print, printError: () => {} });
  return lines;
}

test('connections prints the steps of the request, as text and as JSON', async () => {
  const client = await createTestClient(server);
  const url = authorizationUrl(server, client, { redirect_uri: 'https://other.example/' });
  const request = (await fetch(url)).headers.get('request-id') ?? '';
  const lines = await until(
    () => run({ request }),
    (printed) => printed.length > 0,
  );
  assert.match(lines[0] ?? '', new RegExp(`refused  ${client.id}$`));
  assert.match(
    lines[1] ?? '',
    /^ {2}\d{4}-\d\d-\d\dT[\d:.]+Z {2}authorize +refused +invalid_redirect_uri .*sent redirect_uri https:\/\/other\.example\/\./,
  );
  const [json] = await run({ client: client.id, outcome: 'refused', json: true });
  assert.equal(JSON.parse(json ?? '').steps[0].request, request);
  assert.deepEqual(await run({ request: 'none' }), []);
  await assert.rejects(run({ outcome: 'bad' }), UsageError);
  await assert.rejects(run({ limit: '0' }), UsageError);
});

test('connections ends with the first delivery, as the console does', async (t) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { authMethod: 'none' });
  const parameters = { resource: `${server.baseUrl}/mcp` };
  const { accessToken: token } = await authorize(server, {
    account,
    client,
    parameters,
    scopes: ['read:posts'],
  });
  const callback = await startCallback(t);
  assert.ok((await trySubscribe(server, { token }, callback.url)).body.result);
  await publish(await createPublisher(server), account, ['first']);
  await until(
    () => readConnections(server.db, { clientId: client.id }, 1),
    (found) => found.length === 1,
  );
  const lines = await until(
    () => run({ client: client.id }),
    (printed) => / {2}delivery /.test(printed.at(-1) ?? ''),
  );
  assert.match(
    lines.at(-1) ?? '',
    /delivery +ok +The first POST to the subscription’s URL got the status 204\./,
  );
  const names = lines.slice(1).map((line) => line.trim().split(/ +/)[1]);
  assert.deepEqual(names.slice(-3), ['token', 'call', 'delivery']);
});
