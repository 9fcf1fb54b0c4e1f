/** The console where kinds have versions: which one a subscription gets, and what each looks like. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { loadPlatform } from '../../src/platform.ts';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import {
  accessibilityErrorsOnTheWay,
  openConsole,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { storyPlaces } from '../support/console/places.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const file = fileURLToPath(new URL('../support/servers/platforms/versioned.config.ts', import.meta.url));
const server = await startConsoleServer({ after }, {}, 'dev', await loadPlatform(file));
const browser = await startBrowser({ after });

for (const [where, options] of storyPlaces) {
  test(`a user chooses the version and the format of a subscription ${where}`, async (t) => {
    const subscriber = await startSubscriber(t);
    const account = await createTestAccount(server);
    const { page, problems } = await openConsole(
      browser,
      server,
      account,
      '/console/subscriptions/new',
      options,
    );
    await page.getByRole('textbox', { name: 'URL' }).fill(subscriber.url);
    await page.getByText('All kinds').click();
    await page.getByText('Advanced settings').click();
    const choose = async (current: string, next: string) => {
      await page.getByRole('button', { name: `${current} Version` }).click();
      await page.getByRole('option', { name: next }).click();
    };
    await choose('2026-10-01 (newest)', '2026-03-01');
    await page.getByRole('radio', { name: 'CloudEvents 1.0' }).focus();
    await page.getByText('Only the id, the kind and a link to the resource.').waitFor();
    assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
    await page.getByRole('button', { name: 'Create subscription' }).click();
    await page.getByText('(newest: 2026-10-01)').waitFor();
    await page.getByRole('tab', { name: 'Settings' }).click();
    await page.getByText('Advanced settings').click();
    await choose('2026-03-01', '2026-10-01 (newest)');
    await page.getByText('Only the id, the kind and a link to the resource.').click();
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByText('Saved.').waitFor();
    await page.getByRole('tab', { name: 'Overview' }).click();
    await page.getByText('Thin', { exact: true }).waitFor();
    assert.equal(await page.getByText('(newest: 2026-10-01)').count(), 0);
    assert.deepEqual(problems, []);
  });

  test(`the catalogue shows every version with its end ${where}`, async () => {
    const account = await createTestAccount(server);
    const path = '/console/events?kind=invoice.paid';
    const { page, problems } = await openConsole(browser, server, account, path, options);
    await page.getByText('"cents": 1250').waitFor();
    await page.getByRole('button', { name: '2026-10-01 (newest) Version' }).click();
    await page.getByRole('option', { name: '2026-01-15 (deprecated)' }).click();
    await page.getByText('"amount": 12.5').waitFor();
    await page.getByText('Deprecated from 2026-07-01, and may be gone from 2027-01-01.').waitFor();
    assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
    assert.deepEqual(problems, []);
  });
}
