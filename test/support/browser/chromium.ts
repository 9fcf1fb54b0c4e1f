/**
 * A real browser for tests: the Chromium that ships as an npm package.
 */

import { existsSync } from 'node:fs';
import { mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import chromium from '@sparticuz/chromium';
import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium as driver,
  type Page,
} from 'playwright-core';

interface Scope {
  after: (close: () => Promise<void>) => unknown;
}

// Pages are drawn in software. Emulating a graphics processor costs a third of the processor time of a page test.
chromium.setGraphicsMode = false;

/** Disables the graphics processor and everything that a browser does in the background, such as look-ups and updates. */
const quietArguments = [
  '--disable-gpu',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-quic',
  '--no-first-run',
];

/** Starts a browser for a test or file. */
export async function startBrowser(scope: Scope): Promise<Browser> {
  const browser = await driver.launch(await launchOptions());
  scope.after(() => browser.close());
  return browser;
}

/** Starts a browser that another program can also control. All pages share one profile. @param port of the DevTools protocol */
export async function startDebuggedBrowser(scope: Scope, port: number): Promise<BrowserContext> {
  const profile = await mkdtemp(join(tmpdir(), 'nuncio-profile-'));
  const { args, ...options } = await launchOptions();
  const context = await driver.launchPersistentContext(profile, {
    ...options,
    args: [...args, `--remote-debugging-port=${port}`],
  });
  scope.after(async () => {
    await context.close();
    await rm(profile, { recursive: true, force: true });
  });
  return context;
}

async function launchOptions() {
  return {
    executablePath: await unpackedChromium(),
    args: [...chromium.args.filter((argument) => !argument.startsWith('--headless')), ...quietArguments],
    headless: true,
  };
}

/**
 * The package unpacks itself into the temporary directory under a fixed name. Each user gets a separate folder
 * instead, renamed into place once complete, so that test files can call this concurrently.
 */
async function unpackedChromium(): Promise<string> {
  const folder = join(tmpdir(), `nuncio-chromium-${process.getuid?.() ?? 'user'}`);
  const executable = join(folder, 'chromium');
  if (existsSync(executable)) return executable;
  const draft = await mkdtemp(`${folder}-`);
  const { TMPDIR } = process.env;
  process.env.TMPDIR = draft;
  await chromium.executablePath();
  if (TMPDIR === undefined) delete process.env.TMPDIR;
  else process.env.TMPDIR = TMPDIR;
  // Another process has already created the folder.
  await rename(draft, folder).catch(() => rm(draft, { recursive: true, force: true }));
  return executable;
}

/** Opens a page of a browser with an empty profile. Collects the page's errors in `problems`. */
export async function openPage(
  browser: Browser,
  options: BrowserContextOptions = {},
): Promise<{ page: Page; problems: string[] }> {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const problems: string[] = [];
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') problems.push(message.text());
  });
  return { page, problems };
}
