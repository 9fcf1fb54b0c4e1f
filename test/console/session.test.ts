/** The console when its session ends on the server: by a reset of the password, or by signing out on the account page. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { changePassword } from '../../src/accounts/account.ts';
import { endSessions } from '../../src/oauth/storage/end_sessions.ts';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import {
  accessibilityErrors,
  openConsole,
  signIn,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });

test('the console asks to sign in when its session ends, and continues where the user was', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account);
  const password = 'another password';
  await server.db.transaction().execute(async (tx) => {
    await changePassword(tx, account.id, password);
    await endSessions(tx, account.id);
  });
  // Within a second the tokens are refused. Until then, a page may still load.
  const dialog = page.getByRole('dialog', { name: 'You are signed out' });
  let next = 'Events';
  await until(
    async () => {
      next = next === 'Events' ? 'Subscriptions' : 'Events';
      await page
        .getByRole('link', { name: next, exact: true })
        .first()
        .click({ timeout: 1_000 })
        .catch(() => {});
      return dialog.isVisible();
    },
    (is) => is,
  );
  assert.deepEqual(await accessibilityErrors(page), []);
  const at = new URL(page.url()).pathname;
  await page.getByRole('button', { name: 'Sign in again' }).click();
  await signIn(page, { email: account.email, password });
  await page.waitForURL((url) => url.pathname === at);
  await page.getByRole('heading', { level: 1 }).first().waitFor();
  assert.equal(await dialog.isVisible(), false);
});
