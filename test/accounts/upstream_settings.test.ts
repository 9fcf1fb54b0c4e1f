/** The settings of upstream providers: validation, error messages, client secrets and allowed hosts. */

import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { readUpstreamSecrets } from '../../src/accounts/upstream/provider_settings.ts';
import { ConfigError } from '../../src/config/config.ts';
import { isPrivateNetwork } from '../../src/egress/address.ts';
import { mayConnect } from '../../src/egress/resolve.ts';
import { createPlatform, loadPlatform, type PlatformDeclaration, PlatformError } from '../../src/platform.ts';

const good = {
  id: 'company',
  name: 'Company',
  issuer: 'https://id.example.com',
  clientId: 'nuncio',
  clientSecretEnv: 'COMPANY_SECRET',
};

function problemsOf(accounts: unknown): readonly string[] {
  try {
    createPlatform({ accounts } as PlatformDeclaration);
    return [];
  } catch (error) {
    assert.ok(error instanceof PlatformError);
    return error.problems;
  }
}

test('upstream accepts valid providers and sets defaults', () => {
  const { accounts } = createPlatform({ accounts: { upstream: [good], registration: 'open' } });
  assert.deepEqual(accounts.upstream, [{ ...good, trustEmail: false }]);
  assert.equal(createPlatform({}).accounts.registration, 'off');
  assert.deepEqual(createPlatform({}).accounts.upstream, []);
  for (const issuer of [
    'https://id.example.com/',
    'https://id.example.com/realms/one',
    'https://10.0.0.5:8443',
    'http://localhost:8080',
    'http://127.0.0.1:8080',
    'http://[::1]:8080',
    'http://id.localhost:8080',
  ]) {
    assert.deepEqual(problemsOf({ upstream: [{ ...good, issuer }] }), [], issuer);
  }
});

test('upstream reports the place and the expected value when a provider is invalid', () => {
  const wrong: [unknown, RegExp][] = [
    ['google', /^accounts\.upstream: must be an array of up to 20 providers$/],
    [Array.from({ length: 21 }, (_none, index) => ({ ...good, id: `p${index}` })), /an array of up to 20/],
    [['google'], /^accounts\.upstream\[0\]: must be \{ id, name/],
    [
      [{ ...good, secret: 'x' }],
      /^accounts\.upstream\[0\]\.secret: is not a known setting; there are id, name, /,
    ],
    [[{ ...good, id: 'Company' }], /\.id: must be a lower-case word/],
    [[{ ...good, id: 'a/b' }], /\.id: /],
    [[{ ...good, name: ' ' }], /\.name: must be 1 to 60 characters/],
    [[{ ...good, issuer: 'http://id.example.com' }], /\.issuer: must be a URL .* https:\/\//],
    [[{ ...good, issuer: 'https://id.example.com?tenant=1' }], /\.issuer: /],
    [[{ ...good, issuer: 'https://id.example.com#x' }], /\.issuer: /],
    [[{ ...good, issuer: 'https://user:password@id.example.com' }], /\.issuer: /],
    [[{ ...good, issuer: 'https://id.example.com:25' }], /\.issuer: .*port 443/],
    [[{ ...good, issuer: 'file:///etc/passwd' }], /\.issuer: /],
    [[{ ...good, clientId: '' }], /\.clientId: /],
    [[{ ...good, clientSecretEnv: 'NUNCIO_SECRET' }], /\.clientSecretEnv: .* does not begin with NUNCIO_/],
    [[{ ...good, clientSecretEnv: undefined }], /\.clientSecretEnv: /],
    [[{ ...good, trustEmail: 'yes' }], /\.trustEmail: must be true or false/],
    [[good, { ...good, issuer: 'https://other.example' }], /two providers have the id "company"/],
    [[good, { ...good, id: 'other', issuer: 'https://id.example.com/' }], /two providers have the issuer/],
  ];
  for (const [upstream, message] of wrong) {
    const problems = problemsOf({ upstream });
    assert.equal(problems.length, 1, JSON.stringify([upstream, problems]));
    assert.match(problems[0] as string, message);
  }
});

test('upstream with login, and open registration without upstream, are reported', () => {
  const login = { url: 'https://app.example.com/login' };
  assert.match(
    problemsOf({ login, upstream: [good] })[0] ?? '',
    /accounts\.upstream: users sign in at `accounts\.login`/,
  );
  assert.match(
    problemsOf({ registration: 'open' })[0] ?? '',
    /accounts\.registration: must be "off" without/,
  );
  assert.match(
    problemsOf({ registration: 'invite' })[0] ?? '',
    /accounts\.registration: must be "open" or "off"/,
  );
});

test('readUpstreamSecrets throws with the variable’s name when a client secret is not set', () => {
  const { upstream } = createPlatform({ accounts: { upstream: [good] } }).accounts;
  delete process.env.COMPANY_SECRET;
  assert.throws(
    () => readUpstreamSecrets(upstream),
    (error) =>
      error instanceof ConfigError && /^COMPANY_SECRET is not set: .*"company"/.test(error.problems[0] ?? ''),
  );
  process.env.COMPANY_SECRET = ' ';
  assert.throws(() => readUpstreamSecrets(upstream), ConfigError);
  process.env.COMPANY_SECRET = 'secret';
  assert.deepEqual([...readUpstreamSecrets(upstream)], [['company', 'secret']]);
});

test('only the issuer’s host can be in a private network, and no host can be link-local', () => {
  const policy = { allowLoopback: false, trustedHost: 'id.example.com' };
  for (const address of [
    '10.0.0.5',
    '172.16.0.1',
    '192.168.1.1',
    '100.64.0.1',
    'fd00::1',
    '127.0.0.1',
    '::1',
  ]) {
    assert.equal(mayConnect(address, policy, 'id.example.com'), true, address);
    assert.equal(mayConnect(address, policy, 'token.example.com'), false, address);
    assert.equal(mayConnect(address, { allowLoopback: false }, 'id.example.com'), false, address);
  }
  for (const address of [
    '169.254.169.254',
    'fe80::1',
    '0.0.0.0',
    '224.0.0.1',
    '::ffff:169.254.169.254',
    'x',
  ]) {
    assert.equal(mayConnect(address, policy, 'id.example.com'), false, address);
    assert.equal(isPrivateNetwork(address), false, address);
  }
  assert.equal(isPrivateNetwork('::ffff:10.0.0.1'), true);
  assert.equal(mayConnect('93.184.215.14', policy, 'token.example.com'), true);
});

test('the example in docs/platform.md is a valid declaration', async (t) => {
  const text = await readFile(new URL('../../docs/platform.md', import.meta.url), 'utf8');
  const section = text.slice(text.indexOf('### Sign-in with OpenID providers'));
  const block = /```ts\n([\s\S]*?)```/.exec(section)?.[1] ?? '';
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-config-'));
  t.after(() => rm(folder, { recursive: true }));
  const file = join(folder, 'nuncio.config.ts');
  await writeFile(
    file,
    block.replace("'nuncio'", `'${new URL('../../src/index.ts', import.meta.url).href}'`),
  );
  const { accounts } = await loadPlatform(file);
  assert.equal(accounts.registration, 'open');
  assert.deepEqual(
    accounts.upstream.map(({ id, trustEmail, clientSecretEnv }) => [id, trustEmail, clientSecretEnv]),
    [['company', true, 'COMPANY_CLIENT_SECRET']],
  );
  assert.match(section, /<base_url>\/login\/<id>\/callback/);
});
