/**
 * Clients in other languages with their default settings: sign-in, consent, code, tokens, userinfo, refresh and a
 * request to the API. Each test is skipped, with the reason, if its language is not installed.
 */

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { after, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { exportJWK, exportPKCS8, generateKeyPair } from 'jose';
import { TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, createTestClient, passPages, type TestClient } from '../support/clients/oauth.ts';
import { type Python, preparePython } from '../support/programs/python.ts';
import { startTestServer } from '../support/servers/server.ts';

const folder = fileURLToPath(new URL('./', import.meta.url));
const goFolder = join(folder, 'go');
const pythonFolder = join(folder, 'python');
const goProgram = fileURLToPath(new URL('../../node_modules/.cache/nuncio-go-client', import.meta.url));
/** Timeout for downloading and building the Go modules. */
const buildMs = 300_000;

const server = await startTestServer({ after });
const account = await createTestAccount(server);
// Redirect URIs on loopback may use http.
const redirectUri = 'http://127.0.0.1:7777/callback';
const scopes = ['openid', 'profile', 'email', 'read:posts'];

interface Outcome {
  subject: string | null;
  userinfo: Record<string, unknown> | null;
  renewed: boolean | null;
  api: { account: { id: string } | null; client: { id: string } };
}

/** Runs a client. If it prints a URL first, the user visits that URL. */
async function drive(
  t: TestContext,
  [command, ...parameters]: [string, ...string[]],
  client: TestClient,
  environment: Record<string, string> = {},
): Promise<Outcome> {
  const child = spawn(command, parameters, {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: {
      PATH: process.env.PATH,
      PYTHONDONTWRITEBYTECODE: '1',
      // By default, oauthlib rejects http.
      OAUTHLIB_INSECURE_TRANSPORT: '1',
      ISSUER: server.baseUrl,
      CLIENT_ID: client.id,
      CLIENT_SECRET: client.secret ?? '',
      REDIRECT_URI: redirectUri,
      ...environment,
    },
  });
  t.after(() => void child.kill());
  const faults = text(child.stderr);
  const exit = once(child, 'exit');
  let last = '';
  for await (const line of createInterface({ input: child.stdout })) {
    last = line;
    if (!line.startsWith('http')) continue;
    const browser = new TestBrowser(server.baseUrl);
    const redirect = await passPages(browser, await browser.open(line), account);
    child.stdin.write(`${redirect.href}\n`);
  }
  const [code] = await exit;
  assert.equal(code, 0, await faults);
  return JSON.parse(last) as Outcome;
}

function assertSignedIn({ subject, userinfo, renewed, api }: Outcome, client: TestClient): void {
  assert.equal(subject, account.id);
  assert.equal(userinfo?.sub, account.id);
  assert.equal(userinfo?.email, account.email);
  assert.equal(renewed, true);
  assert.equal(api.account?.id, account.id);
  assert.equal(api.client.id, client.id);
}

let python: Promise<Python> | undefined;

/** @returns the command for a script, or undefined if the test is marked as skipped */
async function pythonCommand(t: TestContext, script: string): Promise<[string, string] | undefined> {
  python ??= preparePython(join(pythonFolder, 'requirements.txt'));
  const prepared = await python;
  if ('missing' in prepared) {
    t.skip(prepared.missing);
    return undefined;
  }
  return [prepared.bin('python'), join(pythonFolder, script)];
}

for (const script of ['use_authlib.py', 'use_requests_oauthlib.py']) {
  test(`${script} signs a user in, renews the token and calls the API`, async (t) => {
    const command = await pythonCommand(t, script);
    if (command === undefined) return;
    const client = await createTestClient(server, { redirectUris: [redirectUri], scopes });
    assertSignedIn(await drive(t, command, client), client);
  });
}

test('use_authlib_assertion.py authenticates by private_key_jwt with the token endpoint as audience', async (t) => {
  const command = await pythonCommand(t, 'use_authlib_assertion.py');
  if (command === undefined) return;
  const { privateKey, publicKey } = await generateKeyPair('RS256', { extractable: true });
  const client = await createTestClient(server, {
    redirectUris: [],
    grantTypes: ['client_credentials'],
    scopes: ['read:posts'],
    authMethod: 'private_key_jwt',
    metadata: { jwks: { keys: [{ ...(await exportJWK(publicKey)), alg: 'RS256', use: 'sig' }] } },
  });
  const { api } = await drive(t, command, client, { PRIVATE_KEY: await exportPKCS8(privateKey) });
  assert.equal(api.account, null);
  assert.equal(api.client.id, client.id);
});

test('golang.org/x/oauth2 with go-oidc signs a user in, renews the token and calls the API', async (t) => {
  try {
    await promisify(execFile)('go', ['build', '-o', goProgram, '.'], { cwd: goFolder, timeout: buildMs });
  } catch (error) {
    const { stderr = '', message } = error as { stderr?: string; message: string };
    // Errors in our own program must fail the test.
    assert.doesNotMatch(stderr, /^\.\/main\.go:/m);
    return t.skip(`no Go, or its modules cannot be had: ${(stderr || message).slice(0, 300)}`);
  }
  const client = await createTestClient(server, { redirectUris: [redirectUri], scopes });
  assertSignedIn(await drive(t, [goProgram], client), client);
});
