/**
 * The configurations for the OpenID conformance suite (test/interoperability/oidf): the elements that its scripted
 * browser fills in, clicks and waits for exist on the pages that it visits. The suite itself does not run here.
 */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { type Page, TestBrowser } from '../../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
} from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);

interface Configuration {
  client: { client_id: string };
  server: { discoveryUrl: string };
  browser: Visit[];
  override: Record<string, { browser: Visit[] }>;
}

interface Visit {
  match: string;
  tasks: { match: string; commands?: (string | number)[][] }[];
}

function print(kind: string): { status: number | null; stdout: string } {
  const facts = {
    op: server.baseUrl,
    suite: 'https://suite.example',
    email: account.email,
    password: account.password,
    client: { client_id: client.id },
  };
  const input = JSON.stringify(facts);
  return spawnSync(process.execPath, ['test/interoperability/oidf/configuration.ts', kind], {
    input,
    encoding: 'utf8',
  });
}

function read(kind: string): Configuration {
  const { status, stdout } = print(kind);
  assert.equal(status, 0);
  return JSON.parse(stdout) as Configuration;
}

/** Returns every command of a configuration, such as `click css button[value=login]` or `wait xpath //* 10 Sign in`. */
function commandsOf({ browser, override }: Configuration): Set<string> {
  const visits = [...browser, ...Object.values(override).flatMap((entry) => entry.browser)];
  const commands = visits.flatMap((visit) => visit.tasks.flatMap((task) => task.commands ?? []));
  return new Set(commands.map((command) => command.join(' ')));
}

async function open(parameters: Record<string, string> = {}): Promise<{ browser: TestBrowser; page: Page }> {
  const browser = new TestBrowser(server.baseUrl);
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const url = authorizationUrl(server, client, { scope: 'openid read:posts', ...pkce, ...parameters });
  return { browser, page: await browser.open(url) };
}

function has(page: Page, ...patterns: RegExp[]): void {
  for (const pattern of patterns) assert.match(page.text, pattern);
}

test('a plan configuration contains the facts of a run and names both hosts', () => {
  const configuration = read('openid');
  assert.equal(configuration.client.client_id, client.id);
  assert.equal(configuration.server.discoveryUrl, `${server.baseUrl}/.well-known/openid-configuration`);
  for (const { match, tasks } of configuration.browser) {
    assert.ok(match.startsWith(`${server.baseUrl}/oauth/`), match);
    assert.ok(tasks.at(-1)?.match.startsWith('https://suite.example/test/'));
  }
  assert.equal(print('something').status, 2);
});

test('the pages have what the suite’s scripted browser presses and waits for', async () => {
  const commands = new Set([...commandsOf(read('openid')), ...commandsOf(read('fapi2'))]);
  const waits = [...commands].filter((command) => command.startsWith('wait xpath'));
  const texts = waits.map((command) => command.replace(/^wait xpath \S+ \d+ (.*) \S+$/, '$1'));
  assert.deepEqual([...new Set(texts)].sort(), [
    'Connect',
    'Sign in',
    'Something went wrong',
    'You are signed out',
  ]);
  const presses = [...commands].filter((command) => command.startsWith('click css'));
  const selectors = presses.map((command) => command.split(' ')[2] ?? '');
  assert.deepEqual([...new Set(selectors)].sort(), [
    'a.button',
    'button[name=logout]',
    'button[value=allow]',
    'button[value=deny]',
    'button[value=login]',
  ]);

  const { browser, page: login } = await open();
  has(login, /name="email"/, /name="password"/, /<button[^>]* value="login"/, /<button[^>]* value="deny"/);
  has(login, /Sign in/);
  const values = { email: account.email, password: account.password, action: 'login' };
  const consent = await browser.submit(login, values);
  has(consent, /<button[^>]* value="allow"/, /Connect/);
  await browser.submit(consent, { action: 'allow' });

  const { page: error } = await open({ redirect_uri: 'https://other.example/' });
  has(error, /Something went wrong/);
  const logout = await browser.open(`${server.baseUrl}/oauth/logout`);
  has(logout, /<button[^>]* name="logout"/);
  has(await browser.submit(logout, { logout: 'yes' }), /You are signed out/);

  const itself = await createTestClient(server, { origin: 'registration' });
  const parameters = { client_id: itself.id, redirect_uri: itself.redirectUri, prompt: 'none' };
  has((await open(parameters)).page, /<a class="button"/);
});
