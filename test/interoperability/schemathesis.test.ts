/**
 * Schemathesis, an independent tool, checks the server against `/openapi.json`: the server accepts what the document
 * allows, rejects what it forbids, and responds as described. Skipped without Python.
 */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { consoleClientId } from '../../src/clients/own_clients.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { consoleScopes } from '../support/console/console_user.ts';
import { preparePython } from '../support/programs/python.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';

const folder = fileURLToPath(new URL('schemathesis/', import.meta.url));
const configuration = ['schemathesis.toml', 'hooks.py'];

/** Random cases for each operation, in addition to those derived from the schema's bounds. The seed is fixed. */
const examplesMax = 3;
const seed = 1;
/** Managing apps and the server requires a token of the console, which apps cannot get. */
const managed = '^/(apps|app-invitations|admin|notice-settings)';
/** Lifetime of the token. It must exceed a run on a slow machine. */
const tokenSeconds = 7_200;

const userScopes = ['read:profile', 'read:posts', 'write:posts', 'read:webhooks', 'write:webhooks'];

test('Schemathesis finds no fault in /openapi.json with all checks', (t) =>
  holdAgainst(t, ['--exclude-path-regex', managed], tokensOfApps));

test('Schemathesis finds no fault in the management of apps and server', (t) =>
  // If it followed links, it would withdraw the grant of its own token.
  holdAgainst(
    t,
    ['--include-path-regex', managed, '--phases', 'examples,coverage,fuzzing'],
    tokenOfAdministrator,
  ));

async function holdAgainst(t: TestContext, which: string[], tokens: (server: TestServer) => Promise<Tokens>) {
  const python = await preparePython(join(folder, 'requirements.txt'));
  if ('missing' in python) return t.skip(python.missing);
  // No name is resolved, so that handshakes with invented hosts end at once.
  const resolveHost = () => Promise.reject(new Error('names are not resolved here'));
  const server = await startTestServer(t, {}, 'dev', undefined, { resolveHost });
  const cwd = await mkdtemp(join(tmpdir(), 'nuncio-schemathesis-'));
  t.after(() => rm(cwd, { recursive: true, force: true }));
  for (const file of configuration) await copyFile(join(folder, file), join(cwd, file));
  const child = spawn(
    python.bin('schemathesis'),
    [
      ...['--config-file', 'schemathesis.toml', '--no-color'],
      ...['run', `${server.baseUrl}/openapi.json`, '--checks', 'all', '--continue-on-failure'],
      ...['--max-examples', String(examplesMax), '--seed', String(seed)],
      ...which,
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
  // A run with only 401 and 403 responses would prove nothing.
  assert.doesNotMatch(output, /Authentication failed/, output);
}

/** Tokens by the names of their environment variables. */
type Tokens = Record<string, string>;

const claims = () => ({ exp: Math.floor(Date.now() / 1_000) + tokenSeconds });

/** Creates a token of a user, and one of a machine that publishes and manages external accounts. */
async function tokensOfApps(server: TestServer): Promise<Tokens> {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: userScopes });
  const scopes = ['write:events', 'read:accounts', 'write:accounts', 'write:logins'];
  const machine = await createTestClient(server, { scopes });
  const user = await mintAccessToken(server, { account, client, scopes: userScopes, claims: claims() });
  const publisher = await mintAccessToken(server, { client: machine, scopes, claims: claims() });
  return {
    NUNCIO_TOKEN: user.accessToken,
    NUNCIO_MACHINE_TOKEN: publisher.accessToken,
    NUNCIO_OWN_IDS: `${account.id} ${user.grantId}`,
  };
}

async function tokenOfAdministrator(server: TestServer): Promise<Tokens> {
  const account = await createTestAccount(server, { isAdmin: true });
  const scopes = [...consoleScopes, 'admin'];
  const { accessToken, grantId } = await mintAccessToken(server, {
    account,
    client: { id: consoleClientId },
    scopes,
    claims: claims(),
  });
  return {
    NUNCIO_TOKEN: accessToken,
    NUNCIO_MACHINE_TOKEN: accessToken,
    NUNCIO_OWN_IDS: `${account.id} ${grantId}`,
  };
}
