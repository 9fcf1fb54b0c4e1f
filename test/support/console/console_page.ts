/** The console in a real browser. Rebuilds an outdated console, signs a user in, and fails the test on any browser error. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { Browser, BrowserContextOptions, Locator, Page } from 'playwright-core';
import { buildConsole } from '../../../scripts/build_console.ts';
import { openPage } from '../browser/chromium.ts';
import type { TestAccount } from '../clients/oauth.ts';
import { tier } from '../runner/tier.ts';
import { startTestServer, type TestServer } from '../servers/server.ts';
import { desktop } from './places.ts';

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Timeout for one step of a page on a slow machine. */
const stepTimeoutMs = 60_000;

/** Starts a server with a console built from the current sources. */
export async function startConsoleServer(
  ...parameters: Parameters<typeof startTestServer>
): Promise<TestServer> {
  assert(process.env.TEST_CONSOLE_IS_BUILT === '1' || (await buildConsole()), 'the console is built');
  return startTestServer(...parameters);
}

export interface ConsolePage {
  page: Page;
  /** Problems that the browser reported: script errors, Content-Security-Policy violations, requests to other origins. */
  problems: string[];
  /** Navigates within the console as a link does. The session is kept. */
  follow: (path: string) => Promise<void>;
}

/**
 * Signs a user in to the console.
 * @param path the path to open
 */
export async function openConsole(
  browser: Browser,
  server: Pick<TestServer, 'baseUrl'>,
  account: TestAccount,
  path = '/console',
  options: BrowserContextOptions = desktop,
): Promise<ConsolePage> {
  const { page, problems } = await openPage(browser, options);
  page.setDefaultTimeout(stepTimeoutMs);
  page.on('request', (request) => {
    const url = request.url();
    if (!url.startsWith(server.baseUrl) && !/^(?:data|blob):/.test(url)) problems.push(`request to ${url}`);
  });
  await page.goto(server.baseUrl + path);
  await signIn(page, account);
  await page.getByRole('heading', { level: 1 }).first().waitFor();
  const follow = async (next: string) => {
    await page.goto(server.baseUrl + next);
    await page.getByRole('heading', { level: 1 }).first().waitFor();
  };
  return { page, problems, follow };
}

/** Fills in the login page. */
export async function signIn(page: Page, account: Pick<TestAccount, 'email' | 'password'>): Promise<void> {
  await page.locator('input[name=email]').fill(account.email);
  await page.locator('input[name=password]').fill(account.password);
  await page.locator('button[value=login]').click();
}

interface Findings {
  violations: { id: string; nodes: { html: string; failureSummary: string }[] }[];
}

/** Runs in the page: waits until all finite animations and transitions have ended. */
const animationsEnded = `(async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const running = () => document.getAnimations().filter((animation) =>
    animation.playState === 'running' && animation.effect.getComputedTiming().endTime !== Infinity);
  while (running().length > 0) await Promise.allSettled(running().map((animation) => animation.finished));
})()`;

/**
 * Returns the violations that `axe-core` finds after all animations have ended. A color that still fades in has too
 * little contrast.
 */
export async function accessibilityErrors(page: Page): Promise<string[]> {
  await page.evaluate(animationsEnded);
  // The page's Content-Security-Policy blocks injected scripts, so this runs in the driver's isolated world.
  await page.evaluate(axeSource);
  const { violations } = (await page.evaluate(
    "axe.run(document, { resultTypes: ['violations'] })",
  )) as Findings;
  return violations.flatMap(({ id, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${html} ${failureSummary}`),
  );
}

/**
 * Like `accessibilityErrors`, for what a user sees on the way, in tests that both tiers run. `npm test` leaves it out: it checks pages
 * and dialogs in the tests for them.
 */
export async function accessibilityErrorsOnTheWay(page: Page): Promise<string[]> {
  return tier === 'first' ? [] : accessibilityErrors(page);
}

/** The maximum number of tab stops of a page. */
const tabStopsMax = 150;

/** Whether the target has the focus. */
export const hasFocus = (target: Locator): Promise<boolean> =>
  target.evaluate((element) => element === element.ownerDocument.activeElement);

/** Presses Tab until the target has the focus, as a keyboard user does. */
export async function tabTo(page: Page, target: Locator): Promise<void> {
  for (let stops = 0; stops < tabStopsMax; stops += 1) {
    if (await hasFocus(target)) return;
    await page.keyboard.press('Tab');
  }
  throw new Error(`the keyboard does not reach ${target}`);
}
