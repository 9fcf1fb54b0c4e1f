/** The console in a browser: how deliveries authenticate to the receiver, and the handshake. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import {
  accessibilityErrorsOnTheWay,
  openConsole,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { accept, type Behaviour, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });

const echo: Behaviour = ({ body }, response) => {
  response.end(JSON.stringify({ challenge: JSON.parse(body).challenge }));
};

test('a user chooses how deliveries authenticate, and keeps or replaces what is stored', async (t) => {
  const subscriber = await startSubscriber(t);
  const account = await createTestAccount(server);
  const { page, problems } = await openConsole(browser, server, account, '/console/subscriptions/new');
  const choose = async (name: string) => {
    await page.getByRole('button', { name: 'Authentication' }).click();
    await page.getByRole('option', { name }).click();
  };
  await page.getByRole('textbox', { name: 'URL' }).fill(subscriber.url);
  await page.getByText('All kinds').click();
  await page.getByText('Advanced settings').click();
  await choose('Access token');
  await page.getByRole('button', { name: 'Create subscription' }).click();
  await page.getByText('Complete the authentication.').waitFor();
  await page.getByRole('textbox', { name: 'Token URL' }).fill('https://hooks.internal/token');
  await page.getByRole('textbox', { name: 'Client ID' }).fill('webhooks');
  await page.getByRole('textbox', { name: 'Client secret' }).fill('secret');
  await page.getByRole('button', { name: 'Create subscription' }).click();
  await page.getByText('It must have a host on the public internet.').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await choose('User name and password');
  await page.getByRole('textbox', { name: 'User name' }).fill('nuncio');
  await page.getByRole('textbox', { name: 'Password' }).fill('hidden');
  await page.getByText('Before a new URL is saved').click();
  await page.getByRole('button', { name: 'Create subscription' }).click();
  await page.getByText('It did not echo the challenge: the response is not JSON.').waitFor();
  subscriber.behave(echo);
  await page.getByRole('button', { name: 'Create subscription' }).click();
  await page.getByText('Password of the user nuncio').waitFor();
  assert.equal(subscriber.received.at(-1)?.headers.authorization, `Basic ${btoa('nuncio:hidden')}`);

  // A change of something else keeps it.
  subscriber.behave(accept);
  await page.getByRole('tab', { name: 'Settings' }).click();
  await page.getByText('Advanced settings').click();
  await page.getByRole('button', { name: 'Password of the user nuncio (unchanged)' }).waitFor();
  assert.equal(await page.getByRole('textbox', { name: 'Password' }).count(), 0);
  await page.getByRole('textbox', { name: 'Description' }).fill('Warehouse');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('heading', { name: 'Warehouse' }).waitFor();
  await page.getByRole('button', { name: 'Send test event' }).click();
  const received = await subscriber.waitFor(3);
  assert.equal(received[2]?.headers.authorization, `Basic ${btoa('nuncio:hidden')}`);

  await page.getByText('Advanced settings').click();
  await choose('Header, such as an API key');
  await page.getByRole('textbox', { name: 'Header name' }).fill('X-Api-Key');
  await page.getByRole('textbox', { name: 'Header value' }).fill('42');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('Saved.').waitFor();
  await page.getByRole('tab', { name: 'Overview' }).click();
  await page.getByText('Header X-Api-Key').waitFor();
  // The browser reports the two refusals.
  assert.deepEqual(
    problems.filter((problem) => !problem.includes('422')),
    [],
  );
});
