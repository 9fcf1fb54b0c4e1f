/** What traces say about pages of an authorization request whose forms are refused, or that were open for too long. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { readConnections } from '../../src/connections/connection_store.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  type TestClient,
} from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const connectionOf = await createTraceReader(server);
const requestOf = ({ response }: Page) => response.headers.get('request-id');

async function openSignIn(client: TestClient, browser = new TestBrowser(server.baseUrl)) {
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256', scope: 'read:posts' };
  return { browser, page: await browser.open(authorizationUrl(server, client, pkce)) };
}

async function openConsent(client: TestClient) {
  const { browser, page } = await openSignIn(client);
  const credentials = { email: account.email, password: account.password, action: 'login' };
  return { browser, signIn: page, page: await browser.submit(page, credentials) };
}

/** @returns the step, which the request id of the page finds */
async function refusedBy(page: Page, client: TestClient) {
  const shown = /request <code>([^<]+)</i.exec(page.text)?.[1];
  assert.equal(shown, requestOf(page));
  const connection = await connectionOf(shown ?? null);
  assert.equal(connection.client, client.id);
  return connection;
}

test('a sign-in form without its token is a refused sign-in of the app, which goes on', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const { browser, page } = await openSignIn(client);
  for (const token of ['', 'forged']) {
    const refused = await browser.submit(page, {
      ...{ form_token: token, email: account.email, password: account.password, action: 'login' },
    });
    assert.equal(refused.response.status, 403);
    const connection = await refusedBy(refused, client);
    assert.deepEqual([connection.refused.name, connection.refused.error], ['sign-in', 'form-token']);
    assert.match(
      connection.refused.explanation ?? '',
      /no valid token of its page\. .*open for too long.*accepts cookies/,
    );
    assert.equal(connection.outcome, 'refused');
    assert.equal(connection.steps[0]?.name, 'authorize');
  }
  assert.ok((await passPages(browser, page, account)).searchParams.get('code'));
  const [found, ...others] = await until(
    () => readConnections(server.db, { clientId: client.id }, 9),
    ([first]) => first?.outcome === 'open',
  );
  assert.deepEqual(others, []);
  assert.equal(found?.steps.filter(({ outcome }) => outcome === 'refused').length, 2);
});

test('a consent form with the token of another page is a refused consent, not blamed on the user', async () => {
  const client = await createTestClient(server, { authMethod: 'none', name: 'Old Page' });
  const { browser, signIn, page } = await openConsent(client);
  assert.match(page.text, /value="allow"/);
  const token = formsOf(signIn.text)[0]?.fields.form_token ?? '';
  assert.notEqual(token, '');
  const refused = await browser.submit(page, { action: 'allow', form_token: token });
  assert.equal(refused.response.status, 403);
  const { refused: step } = await refusedBy(refused, client);
  assert.deepEqual([step.name, step.error], ['consent', 'form-token']);
  const own = await browser.open(`${server.baseUrl}/account`);
  assert.match(
    own.text,
    /<strong>Old Page<\/strong> could not finish connecting .*page on which you allow the access/,
  );
  assert.doesNotMatch(own.text, /Old Page<\/strong>[^<]*<time[^>]*>[^<]*<\/time>: you did not allow/);
});

test('a form that comes from another origin names both, for a base URL that is wrong', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const { browser, page } = await openSignIn(client);
  const response = await browser.request(page.url, {
    method: 'POST',
    headers: { origin: 'http://proxy.internal:8080' },
    body: new URLSearchParams({ action: 'login' }),
  });
  assert.equal(response.status, 403);
  const { refused } = await connectionOf(response.headers.get('request-id'));
  assert.equal(refused.error, 'form-token');
  const explanation = refused.explanation ?? '';
  assert.ok(explanation.includes('the origin http://proxy.internal:8080. '), explanation);
  assert.ok(explanation.includes(`Expected ${server.baseUrl}, the base URL`), explanation);
  assert.match(explanation, /check NUNCIO_BASE_URL/);
});

test('a consent page without its cookie, or after its time, is a refused consent', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const { browser, page } = await openConsent(client);
  const elsewhere = await new TestBrowser(server.baseUrl).submit(page, { action: 'allow' });
  assert.equal(elsewhere.response.status, 400);
  const { refused } = await refusedBy(elsewhere, client);
  assert.deepEqual([refused.name, refused.error], ['consent', 'sign-in-expired']);
  assert.match(refused.explanation ?? '', /was open for too long/);
  // The request is deleted when it expires, so the trace does not know whose it was.
  await sql`delete from interactions where uid = ${page.url.split('/').at(-1)}`.execute(server.db);
  const late = await browser.submit(page, { action: 'allow' });
  assert.equal(late.response.status, 400);
  const unknown = await connectionOf(requestOf(late));
  assert.deepEqual([unknown.client, unknown.refused.error], [null, 'sign-in-expired']);
});

test('attack: a form of another app’s page does not get into the connection of this one', async () => {
  const [mine, victim] = [
    await createTestClient(server, { authMethod: 'none' }),
    await createTestClient(server, { authMethod: 'none' }),
  ];
  const attacker = await openSignIn(mine);
  const attacked = await openSignIn(victim);
  // The attacker knows neither the cookie nor the URL of the victim's page: its own URL counts, whatever the form says.
  const forged = await attacker.browser.submit(attacker.page, {
    ...{ form_token: 'x', client_id: victim.id, uid: attacked.page.url.split('/').at(-1) ?? '' },
  });
  const connection = await connectionOf(requestOf(forged));
  assert.equal(connection.client, mine.id);
  const [own] = await readConnections(server.db, { clientId: victim.id }, 9);
  assert.deepEqual(
    own?.steps.map(({ name }) => name),
    ['authorize'],
  );
});
