/** The documentation site, built as its publisher builds it, and read by a program and by a browser. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join } from 'node:path';
import { after, test } from 'node:test';
import { addressOf, convertPages } from '../../site/documents.ts';
import { pages } from '../../site/pages.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';

const dist = 'site/dist';
const skip =
  (await runSite('install')) === 0 ? false : 'VitePress cannot be installed: the registry is unavailable';

/** @returns the exit code */
function runSite(command: string): Promise<number> {
  return new Promise((resolve) => {
    const child = execFile(
      process.execPath,
      ['site/main.ts', command],
      { maxBuffer: 67_108_864 },
      (error, out, err) => {
        if (error !== null) console.error(out + err);
        resolve(child.exitCode ?? 1);
      },
    );
  });
}

const types: Readonly<Record<string, string>> = {
  '.css': 'text/css',
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.md': 'text/markdown; charset=utf-8',
  '.png': 'image/png',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
};

/** Serves the files as hosts of static sites do: `/settings` is `settings.html`. */
async function serve(): Promise<string> {
  const server = createServer(async (request, response) => {
    const path = new URL(request.url ?? '/', 'http://localhost').pathname.replace(/\/$/, '/index');
    const file = [path, `${path}.html`]
      .map((name) => join(dist, name))
      .find((name) => extname(name) !== '' && existsSync(name));
    const found = file ?? join(dist, '404.html');
    response.writeHead(file === undefined ? 404 : 200, {
      'content-type': types[extname(found)] ?? 'application/octet-stream',
    });
    response.end(await readFile(found));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const requests: string[] = [];
if (skip === false) assert.equal(await runSite('build'), 0);
const origin = skip === false ? await serve() : '';
const { page, problems } =
  skip === false
    ? await openPage(await startBrowser({ after }))
    : ({} as Awaited<ReturnType<typeof openPage>>);
page?.on('request', (request) => requests.push(request.url()));

const htmlOf = (route: string) => readFileSync(join(dist, `${route}.html`), 'utf8');

test('each page has a title, a description, a policy and no script of its own', { skip }, () => {
  for (const { route, title } of convertPages()) {
    const html = htmlOf(route);
    const plain = title.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
    assert.ok(
      html.includes(`<title>${plain} · Nuncio</title>`) || html.includes('<title>Nuncio'),
      `${route}: ${title}`,
    );
    assert.match(html, /<meta name="description" content="[^"]{20,}">/, route);
    assert.match(
      html,
      /http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self'/,
      route,
    );
    assert.doesNotMatch(html.replaceAll(/<script[^>]* src="\/[^>]*><\/script>/g, ''), /<script/, route);
    assert.doesNotMatch(html, /(?:src|href)="\/\/|<(?:script|link|img)[^>]*(?:src|href)="https?:/, route);
  }
});

test('each page is reached from the navigation, and no link or anchor is dead', { skip }, () => {
  const queue = ['/'];
  const seen = new Map<string, string>();
  const wrong: string[] = [];
  while (queue.length > 0) {
    const path = queue.pop() as string;
    if (seen.has(path)) continue;
    const html = htmlOf(path.slice(1).replace(/(^|\/)$/, '$1index'));
    seen.set(path, html);
    for (const target of linksOf(html)) {
      const [to = ''] = target.split('#');
      const file = to.slice(1).replace(/(^|\/)$/, '$1index');
      if (existsSync(join(dist, `${file}.html`))) queue.push(to);
      else if (!existsSync(join(dist, file))) wrong.push(`${path}: ${target}`);
    }
  }
  for (const [path, html] of seen) {
    for (const target of linksOf(html)) {
      const [to = '', anchor] = target.split('#');
      const goal = seen.get(to === '' ? path : to);
      if (anchor && goal !== undefined && !goal.includes(`id="${decodeURIComponent(anchor)}"`))
        wrong.push(`${path}: ${target}`);
    }
  }
  assert.deepEqual(wrong, []);
  const missing = pages.filter((each) => !seen.has(`/${addressOf(each)}`)).map(({ file }) => file);
  assert.deepEqual(missing, []);
});

/** The targets of links within the site; of those within the page only the anchor. */
function linksOf(html: string): string[] {
  const all = [...html.matchAll(/<a [^>]*href="((?:\/(?!\/)|#)[^"]*)"/g)].map(([, target = '']) => target);
  return all.filter((target) => target !== '#VPContent').map((target) => target.replaceAll('&amp;', '&'));
}

test('each page is there as Markdown, and llms.txt lists it', { skip }, async () => {
  const index = await (await fetch(`${origin}/llms.txt`)).text();
  const full = await (await fetch(`${origin}/llms-full.txt`)).text();
  for (const each of convertPages()) {
    const address = `/${addressOf(each, '.md')}`;
    assert.ok(index.includes(`](${address}): ${each.description}`), address);
    const response = await fetch(origin + address);
    const text = await response.text();
    assert.equal(response.status, 200, address);
    assert.ok(text.includes(`# `), address);
    assert.ok(full.includes(text.trim()), address);
  }
  for (const [, target = ''] of full.matchAll(/\]\((\/[^)#\s]+)/g))
    assert.ok(existsSync(join(dist, target)), `llms-full.txt: ${target}`);
});

test('the search finds a page in the browser, from an index of the site itself', { skip }, async () => {
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.goto(origin);
  await page.locator('button.DocSearch-Button').click();
  await page.locator('#localsearch-input').fill('withdraw grant');
  const results = page.locator('#localsearch-list .result');
  await results.first().waitFor();
  assert.ok((await results.allInnerTexts()).some((text) => /Grants/.test(text)));
  await results.first().click();
  await page.waitForURL((url) => url.pathname !== '/');
  assert.deepEqual(
    requests.filter((url) => !url.startsWith(origin) && !url.startsWith('data:')),
    [],
  );
});

test('pages are as wide as a phone, and follow the dark theme', { skip }, async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  for (const { route } of pages.filter(({ route: each }) => !each.startsWith('decisions/'))) {
    await page.goto(`${origin}/${route.replace(/(^|\/)index$/, '$1')}`);
    const [wide, width] = await page.evaluate<[number, number]>(
      '[document.documentElement.scrollWidth, innerWidth]',
    );
    assert.ok(wide <= width, `${route}: ${wide} of ${width}`);
  }
  const background = () => page.evaluate<string>('getComputedStyle(document.body).backgroundColor');
  await page.emulateMedia({ colorScheme: 'light' });
  await page.goto(`${origin}/concepts/grants`);
  const light = await background();
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.goto(`${origin}/concepts/grants`);
  assert.equal(light, 'rgb(255, 255, 255)');
  assert.notEqual(await background(), light);
  assert.deepEqual(problems, [], 'the policy and the scripts of the pages agree');
});

test('an unknown address gets the page of the site that says so', { skip }, async () => {
  const response = await fetch(`${origin}/nowhere`);
  assert.equal(response.status, 404);
  await page.goto(`${origin}/nowhere`);
  await page.getByText('Page not found', { exact: false }).first().waitFor();
});
