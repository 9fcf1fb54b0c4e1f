/** Mail notices in the console: switches that the server keeps. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startBrowser } from '../support/browser/chromium.ts';
import { openConsole, startConsoleServer } from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });

test('a user finds mail notices in the account menu and switches a kind off', async () => {
  const user = await createConsoleUser(server);
  const { page, problems, follow } = await openConsole(browser, server, user.account, '/console/apps');
  await page.getByRole('button', { name: user.account.name }).click();
  await page.getByRole('menuitem', { name: 'Mail notices' }).click();
  await page.getByText(`To ${user.account.email}`).waitFor();
  await page.getByText('A failing subscription works again').click();
  const { kinds } = await until(
    async () => (await user.request('GET', '/notice-settings')).body,
    (body) => body.kinds.recovered === false,
  );
  assert.deepEqual(
    Object.values(kinds).filter((isOn) => isOn === false),
    [false],
  );
  await follow('/console/notices');
  const box = page.getByRole('switch', { name: /A failing subscription works again/ });
  await box.waitFor({ state: 'attached' });
  assert.equal(await box.isChecked(), false);
  assert.deepEqual(problems, []);
});
