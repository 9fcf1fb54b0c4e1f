/** Connections of an app in the console: live, with the reason of a refusal, and for the operator by request id. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startBrowser } from '../support/browser/chromium.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  obtainCodeForm,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { accessibilityErrors, openConsole, startConsoleServer } from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { phone } from '../support/console/places.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });
const redirectUri = 'https://reader.example/callback';

async function createApp(user: Awaited<ReturnType<typeof createConsoleUser>>): Promise<TestClient> {
  const { body } = await user.request('POST', '/apps', {
    json: {
      client_name: 'Reader',
      redirect_uris: [redirectUri],
      token_endpoint_auth_method: 'none',
      scope: 'read:profile',
    },
  });
  return { id: body.client_id, redirectUri, authMethod: 'none', secret: null } as TestClient;
}

test('a developer sees attempts appear, each with its steps and the reason of a refusal', async () => {
  const developer = await createConsoleUser(server);
  const client = await createApp(developer);
  const path = `/console/apps/${client.id}?tab=connections`;
  const { page, problems } = await openConsole(browser, server, developer.account, path);
  await page.getByText('No connections').waitFor();
  const account = await createTestAccount(server);
  const scopes = ['read:profile'];
  const { form } = await obtainCodeForm(server, { account, client, scopes });
  await postForm(server, '/oauth/token', client, { ...form, code_verifier: createPkce().verifier });
  const second = await obtainCodeForm(server, { account, client, scopes });
  await postForm(server, '/oauth/token', client, second.form);
  await page.getByText('Refused at: Token').waitFor();
  await page.getByText(/code_verifier whose SHA-256/).waitFor();
  await page.getByText('Connected', { exact: true }).click();
  assert.deepEqual(await accessibilityErrors(page), []);
  await page.setViewportSize(phone.viewport ?? { width: 390, height: 844 });
  assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);
  assert.deepEqual(problems, []);
});

test('an operator finds an attempt of an unknown app by the request id of its error page', async () => {
  const admin = await createConsoleUser(server, { isAdmin: true });
  const url = authorizationUrl(server, { id: 'no-such-app', redirectUri }, {});
  const requestId = (await fetch(url)).headers.get('request-id') ?? '';
  const { page, problems } = await openConsole(
    browser,
    server,
    admin.account,
    '/console/operator/connections',
  );
  await page.getByLabel('Request ID').fill(requestId);
  await page.getByText(requestId).waitFor();
  await page.getByText(/sent client_id no-such-app/).waitFor();
  assert.deepEqual(await accessibilityErrors(page), []);
  assert.deepEqual(problems, []);
});
