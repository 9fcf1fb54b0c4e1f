/**
 * Lighthouse scores of the pages, in the same Chromium as the tests: performance, accessibility and best practices,
 * before and after signing in. `npx` downloads Lighthouse (79 packages that nothing else needs).
 *
 *   npm test -- bench/lighthouse.ts        (needs a database, which the test runner provides)
 *
 * FORM=mobile measures a phone on slow 4G instead of a desktop. PAGES is a pattern for the names of pages. A failed
 * measurement is repeated. A page without a score at the end is listed with the reason, and the run fails.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { startDebuggedBrowser } from '../test/support/browser/chromium.ts';
import { signIn, startConsoleServer } from '../test/support/console/console_page.ts';
import { createConsoleUser } from '../test/support/console/console_user.ts';
import { freePort } from '../test/support/servers/server.ts';
import { createPublisher, publish, subscribe } from '../test/support/webhooks/apps.ts';
import { startSubscriber } from '../test/support/webhooks/subscriber.ts';

const lighthouse = 'lighthouse@13.5.0';
const isMobile = process.env.FORM === 'mobile';
const wanted = new RegExp(process.env.PAGES ?? '');
const categories = ['performance', 'accessibility', 'best-practices'];
const run = promisify(execFile);

const server = await startConsoleServer({ after });
const user = await createConsoleUser(server, { isAdmin: true });
const subscriber = await startSubscriber({ after });
const app = await user.request('POST', '/apps', {
  json: { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'], scope: 'read:posts' },
});
const { id } = await subscribe(user, { url: subscriber.url, description: 'Warehouse' });
await publish(await createPublisher(server), user.account, ['one', 'two', 'three']);
await subscriber.waitFor(3);

const strangersPages = ['/', '/docs/', '/account', '/console', '/device'];
const signedInPages = [
  '/account',
  '/console/apps',
  `/console/apps/${app.body.client_id}`,
  '/console/apps/new',
  '/console/subscriptions',
  `/console/subscriptions/${id}`,
  '/console/subscriptions/new',
  '/console/deliveries',
  '/console/health',
  '/console/events',
  '/console/operator',
  '/console/operator/audit',
];

/** Maximum number of measurements of a page while Lighthouse returns no score. */
const triesMax = 3;

interface Report {
  /** Why there is no score. */
  runtimeError?: { code: string; message: string };
  categories: Record<string, { score: number | null; auditRefs: { id: string; weight: number }[] }>;
  audits: Record<string, { score: number | null; title: string; displayValue?: string }>;
}

/** @throws Error with the reason if no try returns a score for each category */
async function measurePage(path: string, port: number): Promise<Report> {
  for (let count = 1; ; count += 1) {
    try {
      const report = await scoresOf(path, port);
      const { runtimeError } = report;
      if (runtimeError !== undefined) throw new Error(`${runtimeError.code}: ${runtimeError.message}`);
      const missing = categories.filter((name) => typeof report.categories[name]?.score !== 'number');
      if (missing.length > 0) throw new Error(`no figure for ${missing.join(', ')}`);
      return report;
    } catch (error) {
      if (count === triesMax) throw error;
    }
  }
}

async function scoresOf(path: string, port: number): Promise<Report> {
  const { stdout } = await run(
    'npx',
    [
      '--yes',
      lighthouse,
      server.baseUrl + path,
      `--port=${port}`,
      '--output=json',
      '--quiet',
      '--disable-storage-reset',
      `--only-categories=${categories.join(',')}`,
      ...(isMobile ? [] : ['--preset=desktop']),
    ],
    { maxBuffer: 64 * 1_024 * 1_024, env: { ...process.env, NODE_ENV: '' } },
  );
  return JSON.parse(stdout) as Report;
}

function print(name: string, { categories: scores, audits }: Report): void {
  const shown = categories.map((each) => String(Math.round((scores[each]?.score ?? 0) * 100)).padStart(5));
  console.log(`${shown.join('')}  ${name}`);
  for (const { auditRefs } of Object.values(scores)) {
    for (const { id: audit, weight } of auditRefs) {
      const { score, title, displayValue = '' } = audits[audit] ?? { score: null, title: audit };
      if (weight > 0 && score !== null && score < 0.9)
        console.log(`        ${audit}: ${title} ${displayValue}`);
    }
  }
}

const unmeasured: string[] = [];

async function measure(pages: readonly string[], isSignedIn: boolean): Promise<void> {
  const closers: (() => Promise<void>)[] = [];
  const port = await freePort();
  const context = await startDebuggedBrowser({ after: (close) => closers.push(close) }, port);
  if (isSignedIn) {
    const [page = await context.newPage()] = context.pages();
    await page.goto(`${server.baseUrl}/console`);
    await signIn(page, user.account);
    await page.getByRole('heading', { level: 1 }).first().waitFor();
  }
  for (const path of pages.filter((each) => wanted.test(each))) {
    const name = `${path.replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '<id>')}${isSignedIn ? '' : ' (signed out)'}`;
    try {
      print(name, await measurePage(path, port));
    } catch (error) {
      unmeasured.push(name);
      console.log(`    –    –    –  ${name}\n        ${String(error).split('\n', 1)[0]}`);
    }
  }
  for (const close of closers) await close();
}

test('the pages load fast, are accessible and keep to good practice', async () => {
  console.log(`perf a11y best  (${isMobile ? 'phone' : 'desktop'})`);
  await measure(strangersPages, false);
  await measure(signedInPages, true);
  assert.deepEqual(unmeasured, [], 'every page has a figure');
});
