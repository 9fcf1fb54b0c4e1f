/**
 * mod_auth_openidc in a real Apache, with the settings from docs/clients.md: sign-in, claims, refresh and a request
 * to the API. Skipped if Apache or the module is not installed (Debian: apache2, libapache2-mod-auth-openidc).
 */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { access, chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { type TestContext, test } from 'node:test';
import { TestBrowser } from '../support/browser/browser.ts';
import { createVisitor } from '../support/browser/visitor.ts';
import { createTestAccount, createTestClient, passPages, type TestClient } from '../support/clients/oauth.ts';
import { freePort, startTestServer, type TestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const modules = '/usr/lib/apache2/modules';
const program = '/usr/sbin/apache2';

function configuration(folder: string, url: URL, server: TestServer, client: TestClient): string {
  const loaded = ['mpm_event', 'authn_core', 'authz_core', 'authz_user', 'headers', 'auth_openidc'];
  return [
    ...loaded.map((name) => `LoadModule ${name}_module ${modules}/mod_${name}.so`),
    `ServerRoot ${folder}`,
    `DocumentRoot ${folder}`,
    `PidFile ${folder}/pid`,
    `ServerName ${url.hostname}`,
    `Listen 127.0.0.1:${url.port}`,
    `ErrorLog ${folder}/error.log`,
    ...(process.getuid?.() === 0 ? ['User www-data', 'Group www-data'] : []),
    `OIDCProviderMetadataURL ${server.baseUrl}/.well-known/openid-configuration`,
    `OIDCClientID ${client.id}`,
    `OIDCClientSecret ${client.secret}`,
    `OIDCRedirectURI ${url.origin}/callback`,
    'OIDCCryptoPassphrase a-passphrase-of-this-test',
    'OIDCScope "openid profile email read:posts"',
    'OIDCPKCEMethod S256',
    'OIDCInfoHook access_token',
    '<Location />',
    '  AuthType openid-connect',
    '  Require valid-user',
    '  Header always set X-Subject "expr=%{env:OIDC_CLAIM_sub}"',
    '  Header always set X-Email "expr=%{env:OIDC_CLAIM_email}"',
    '</Location>',
    '',
  ].join('\n');
}

/** @returns the address of a running Apache */
async function startApache(t: TestContext, server: TestServer, client: TestClient, url: URL): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-apache-'));
  t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  // If this process is root, Apache's workers run as another user.
  await chmod(folder, 0o755);
  await writeFile(join(folder, 'index.html'), 'a private page');
  await writeFile(join(folder, 'apache.conf'), configuration(folder, url, server, client));
  const child = spawn(program, ['-D', 'FOREGROUND', '-f', join(folder, 'apache.conf')], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const faults = text(child.stderr);
  t.after(async () => {
    child.kill();
    await faults;
  });
  await until(
    async () => {
      if (child.exitCode !== null) throw new Error(await faults);
      return fetch(url, { redirect: 'manual' }).then(
        () => true,
        () => false,
      );
    },
    (isUp) => isUp,
  );
}

test('mod_auth_openidc signs a user in, renews the token and calls the API', async (t) => {
  try {
    await Promise.all([access(program), access(join(modules, 'mod_auth_openidc.so'))]);
  } catch (error) {
    return t.skip(`Apache with mod_auth_openidc is not installed: ${(error as Error).message}`);
  }
  const server = await startTestServer(t);
  const account = await createTestAccount(server);
  const url = new URL(`http://127.0.0.1:${await freePort()}/index.html`);
  const client = await createTestClient(server, {
    redirectUris: [`${url.origin}/callback`],
    scopes: ['openid', 'profile', 'email', 'read:posts'],
  });
  await startApache(t, server, client, url);

  const visit = createVisitor();
  const sent = await visit(url);
  assert.equal(sent.status, 302);
  const browser = new TestBrowser(server.baseUrl);
  const back = await passPages(browser, await browser.open(sent.headers.location ?? ''), account);
  const signedIn = await visit(back);
  assert.equal(signedIn.headers.location, url.href, signedIn.body);
  const page = await visit(url);
  assert.equal(page.body, 'a private page');
  assert.equal(page.headers['x-subject'], account.id);
  assert.equal(page.headers['x-email'], account.email);

  const tokenOf = async (parameters: string) => {
    const info = await visit(`${url.origin}/callback?info=json${parameters}`);
    return (JSON.parse(info.body) as { access_token: string }).access_token;
  };
  const first = await tokenOf('');
  const renewed = await tokenOf('&access_token_refresh_interval=0');
  assert.notEqual(renewed, first);
  const api = await fetch(`${server.baseUrl}/api`, { headers: { authorization: `Bearer ${renewed}` } });
  assert.equal(((await api.json()) as { account: { id: string } }).account.id, account.id);
});
