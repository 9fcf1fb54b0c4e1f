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

/** Nothing of what a browser does on its own account: no look-ups, no updates. */
const quietArguments = [
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

/** Starts a browser that another program can drive as well. Its pages share one profile. @param port of its protocol */
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
 * The package unpacks itself into the temporary directory, under one name for everybody. Here each user has a
 * folder of its own, renamed into place when it is whole, so that test files may ask for it at the same time.
 */
async function unpackedChromium(): Promise<string> {
  const folder = join(tmpdir(), `nuncio-chromium-${process.getuid?.() ?? 'user'}`);
  const executable = join(folder, 'chromium');
  if (existsSync(executable)) return executable;
  const draft = await mkdtemp(`${folder}-`);
  const { TMPDIR } = process.env;
  process.env.TMPDIR = draft;
  chromium.setGraphicsMode = false;
  await chromium.executablePath();
  if (TMPDIR === undefined) delete process.env.TMPDIR;
  else process.env.TMPDIR = TMPDIR;
  // Somebody else was quicker: theirs is as good.
  await rename(draft, folder).catch(() => rm(draft, { recursive: true, force: true }));
  return executable;
}

/** A page of a browser that knows nothing yet. What went wrong in it is kept in `problems`. */
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
