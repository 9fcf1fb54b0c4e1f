/**
 * Spring Security with its default settings. Requires a JVM and a manual build
 * (test/interoperability/spring/README.md); skipped without them.
 */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { access, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { exportJWK, generateKeyPair, type JWK } from 'jose';
import { TestBrowser } from '../support/browser/browser.ts';
import { createVisitor } from '../support/browser/visitor.ts';
import { createTestAccount, createTestClient, passPages } from '../support/clients/oauth.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const jar = fileURLToPath(new URL('spring/target/nuncio-spring-client-1.jar', import.meta.url));

async function startApp(t: TestContext, key: JWK, environment: Record<string, string>): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-spring-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const keyFile = join(folder, 'key.json');
  await writeFile(keyFile, JSON.stringify(key));
  const child = spawn('java', ['-jar', jar], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { PATH: process.env.PATH, KEY_FILE: keyFile, ...environment },
  });
  const log = text(child.stdout);
  t.after(async () => {
    child.kill();
    await log;
  });
  const url = `http://127.0.0.1:${environment.PORT}/`;
  await until(
    async () => {
      if (child.exitCode !== null) throw new Error(await log);
      return fetch(url, { redirect: 'manual' }).then(
        () => true,
        () => false,
      );
    },
    (isUp) => isUp,
  );
  return url;
}

test('Spring Security signs in with a secret or a key, renews the token and calls the API', async (t) => {
  try {
    await access(jar);
  } catch {
    return t.skip('test/interoperability/spring is not built: see its README.md');
  }
  const server = await startTestServer(t);
  const account = await createTestAccount(server);
  const port = await freePort();
  const { privateKey, publicKey } = await generateKeyPair('RS256', { extractable: true });
  const register = (id: string, fields: object) =>
    createTestClient(server, {
      redirectUris: [`http://127.0.0.1:${port}/login/oauth2/code/${id}`],
      scopes: ['openid', 'profile', 'email', 'read:posts'],
      ...fields,
    });
  const basic = await register('basic', {});
  const keys = await register('keys', {
    authMethod: 'private_key_jwt',
    metadata: { jwks: { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'RS256', use: 'sig' }] } },
  });
  const key = { ...(await exportJWK(privateKey)), kid: 'one', alg: 'RS256' };
  const url = await startApp(t, key, {
    PORT: String(port),
    ISSUER: server.baseUrl,
    BASIC_ID: basic.id,
    BASIC_SECRET: basic.secret ?? '',
    KEYS_ID: keys.id,
  });
  for (const [id, client] of [
    ['basic', basic],
    ['keys', keys],
  ] as const) {
    const visit = createVisitor();
    const sent = await visit(`${url}oauth2/authorization/${id}`);
    assert.match(sent.headers.location ?? '', /[?&]code_challenge_method=S256/);
    const browser = new TestBrowser(server.baseUrl);
    const back = await passPages(browser, await browser.open(sent.headers.location ?? ''), account);
    assert.equal((await visit(back)).status, 302);
    const { status, body } = await visit(url);
    assert.equal(status, 200, body);
    const answer = JSON.parse(body);
    assert.equal(answer.subject, account.id);
    assert.equal(answer.email, account.email);
    assert.equal(answer.renewed, true);
    assert.equal(answer.api.account.id, account.id);
    assert.equal(answer.api.client.id, client.id);
  }
});
