/**
 * `/openapi.json` held against the server by Schemathesis, which nobody here wrote: what the document allows is
 * accepted, what it forbids is refused, every response is as described. Skipped where there is no Python.
 */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createTestAccount, createTestClient, mintAccessToken } from './support/oauth.ts';
import { preparePython } from './support/python.ts';
import { startTestServer, type TestServer } from './support/server.ts';

const folder = fileURLToPath(new URL('schemathesis/', import.meta.url));
const configuration = ['schemathesis.toml', 'hooks.py'];

/** Random cases of each operation, beside those that follow from the schema's bounds; always the same ones. */
const examplesMax = 3;
const seed = 1;
/** Managing apps and the server needs the console's token, which no app gets: here all of it would be 403. */
const managed = '^/(apps|app-invitations|admin)';
/** Seconds that a token must last: the run on a slow machine. */
const tokenSeconds = 7_200;

const userScopes = ['read:profile', 'read:posts', 'write:posts', 'read:webhooks', 'write:webhooks'];

test('Schemathesis with all checks finds nothing wrong in /openapi.json', async (t) => {
  const python = await preparePython(join(folder, 'requirements.txt'));
  if ('missing' in python) return t.skip(python.missing);
  const server = await startTestServer(t);
  const cwd = await mkdtemp(join(tmpdir(), 'nuncio-schemathesis-'));
  t.after(() => rm(cwd, { recursive: true, force: true }));
  for (const file of configuration) await copyFile(join(folder, file), join(cwd, file));
  const child = spawn(
    python.bin('schemathesis'),
    [
      ...['--config-file', 'schemathesis.toml', '--no-color'],
      ...['run', `${server.baseUrl}/openapi.json`, '--checks', 'all', '--continue-on-failure'],
      ...['--max-examples', String(examplesMax), '--seed', String(seed)],
      ...['--exclude-path-regex', managed],
    ],
    {
      cwd,
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { PATH: process.env.PATH, HOME: cwd, PYTHONUTF8: '1', ...(await tokens(server)) },
    },
  );
  t.after(() => void child.kill());
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
  assert.equal(code, 0, output);
  assert.match(output, /Tested: +[1-9]/, output);
});

/** One token of a user, and one of a machine that publishes. */
async function tokens(server: TestServer): Promise<Record<string, string>> {
  const claims = { exp: Math.floor(Date.now() / 1_000) + tokenSeconds };
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: userScopes });
  const machine = await createTestClient(server, { scopes: ['write:events'] });
  const scopes = ['write:events'];
  const user = await mintAccessToken(server, { account, client, scopes: userScopes, claims });
  const publisher = await mintAccessToken(server, { client: machine, scopes, claims });
  return { NUNCIO_TOKEN: user.accessToken, NUNCIO_MACHINE_TOKEN: publisher.accessToken };
}
