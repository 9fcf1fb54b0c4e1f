/**
 * Builds the documentation site: `npm run site` writes `site/dist`, `npm run site:dev` serves the site and follows changes. VitePress is
 * installed on first use, from the lock file of this folder.
 */

import { execFileSync, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, watch, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { addressOf, type ConvertedPage, convertPages, root } from './documents.ts';
import { groups } from './pages.ts';

const folder = import.meta.dirname;
const staged = join(folder, '.pages');
const built = join(folder, 'dist');

const product = 'Nuncio';
const summary =
  'Nuncio is a self-hosted server that opens your product to other people’s apps: delegated access (OAuth 2.0, OpenID Connect), a resource API and signed webhooks in one PostgreSQL database.';

/** Installs the dependencies unless those of the lock file are installed. @throws Error if the registry is unavailable */
function install(): void {
  const mark = join(folder, 'node_modules', '.package-lock.json');
  const lock = join(folder, 'package-lock.json');
  if (existsSync(mark) && statSync(mark).mtimeMs >= statSync(lock).mtimeMs) return;
  console.log('Installing VitePress in site/node_modules.');
  execFileSync('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], {
    cwd: folder,
    stdio: 'inherit',
  });
}

/** Writes the pages for VitePress. @throws Error with all dead links */
function stage(): ConvertedPage[] {
  const pages = convertPages();
  const dead = pages.flatMap(({ file, dead: links }) => links.map((link) => `${file}: ${link}`));
  if (dead.length > 0) throw new Error(`Links to missing files:\n${dead.join('\n')}`);
  for (const page of pages) {
    const { title, description, route, file } = page;
    const front = { title, description, ...(route === 'index' ? { aside: false } : {}), source: file };
    writeChanged(join(staged, `${route}.md`), `---\n${JSON.stringify(front)}\n---\n\n${page.text}`);
    writeChanged(join(staged, 'public', `${route}.md`), page.markdown);
  }
  for (const image of new Set(pages.flatMap((page) => page.images))) copyImage(image);
  writeChanged(join(staged, 'public', 'llms.txt'), llmsIndex(pages));
  writeChanged(join(staged, 'public', 'llms-full.txt'), llmsFull(pages));
  cpSync(join(folder, 'public'), join(staged, 'public'), { recursive: true });
  return pages;
}

function copyImage(path: string): void {
  mkdirSync(join(staged, 'public', 'images'), { recursive: true });
  cpSync(join(root, path), join(staged, 'public', 'images', path.split('/').at(-1) as string));
}

/** Leaves an unchanged file alone, so that the development server does not reload it. */
function writeChanged(path: string, text: string): void {
  if (existsSync(path) && readFileSync(path, 'utf8') === text) return;
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
}

/** https://llmstxt.org */
function llmsIndex(pages: readonly ConvertedPage[]): string {
  const byRoute = new Map(pages.map((page) => [page.route, page]));
  const sections = groups.map(({ title, pages: own }) => {
    const lines = own.map((page) => {
      const { title: name = page.name } = byRoute.get(page.route) ?? {};
      return `- [${name}](/${addressOf(page, '.md')}): ${page.description}`;
    });
    return `## ${title}\n\n${lines.join('\n')}`;
  });
  return `# ${product}\n\n> ${summary}\n\nEvery page is also available as Markdown at its address with \`.md\`. All pages in one file: /llms-full.txt\n\n${sections.join('\n\n')}\n`;
}

function llmsFull(pages: readonly ConvertedPage[]): string {
  const texts = pages.map((page) => `<!-- /${addressOf(page, '.md')} -->\n\n${page.markdown.trim()}`);
  return `${texts.join('\n\n---\n\n')}\n`;
}

function vitepress(args: readonly string[]) {
  const program = join(folder, 'node_modules', 'vitepress', 'bin', 'vitepress.js');
  return spawn(process.execPath, [program, ...args], { cwd: folder, stdio: 'inherit' });
}

function runToEnd(args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    vitepress(args).on('exit', (code) =>
      code === 0 ? resolve() : reject(new Error(`vitepress ended with ${code}`)),
    );
  });
}

async function build(options: readonly string[]): Promise<void> {
  rmSync(staged, { recursive: true, force: true });
  install();
  const pages = stage();
  await runToEnd(['build', ...options]);
  console.log(`${pages.length} pages in ${built}`);
}

function develop(options: readonly string[]): void {
  install();
  stage();
  const again = () => {
    try {
      stage();
    } catch (error) {
      console.error((error as Error).message);
    }
  };
  watch(join(root, 'docs'), { recursive: true }, again);
  for (const name of ['README.md', 'CHANGELOG.md', 'SECURITY.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md'])
    watch(join(root, name), again);
  vitepress(['dev', ...options]).on('exit', (code) => process.exit(code ?? 1));
}

const [command, ...options] = process.argv.slice(2);
if (command === 'build') await build(options);
else if (command === 'install') install();
else if (command === 'dev') develop(options);
else {
  console.error('usage: node site/main.ts build|dev|install [options of vitepress]');
  process.exitCode = 2;
}
