/** `nuncio connections`: an operator finds an attempt by the request id of an error page. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { UsageError } from '../../src/commands/command.ts';
import { connections } from '../../src/commands/connections.ts';
import { authorizationUrl, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

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
    /^ {2}authorize +refused +invalid_redirect_uri .*sent redirect_uri https:\/\/other\.example\/\./,
  );
  const [json] = await run({ client: client.id, outcome: 'refused', json: true });
  assert.equal(JSON.parse(json ?? '').steps[0].request, request);
  assert.deepEqual(await run({ request: 'none' }), []);
  await assert.rejects(run({ outcome: 'bad' }), UsageError);
  await assert.rejects(run({ limit: '0' }), UsageError);
});
