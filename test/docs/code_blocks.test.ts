/**
 * Every code block of the documents is run by a test, or its kind is checked here: JSON and YAML parse, TypeScript and JavaScript
 * type-check against the real exports, commands and their options exist, and paths are in the route table. What can be neither is in
 * `unchecked`, with the reason.
 */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { type TestContext, test } from 'node:test';
import { parse as parseYaml } from 'yaml';
import { otherAddresses } from '../../scripts/reference/other_addresses.ts';
import { runCommandLine } from '../../src/commands/command_line.ts';
import { loadPlatform } from '../../src/platform.ts';
import { referenceParts } from '../../src/reference_parts.ts';
import { commandsIn, isNuncio, nuncioWords, requestOf } from '../support/programs/shell_lines.ts';
import { given, typeErrors } from '../support/programs/typed_blocks.ts';
import { type CodeBlock, codeBlocks, inlineCode } from '../support/values/code_blocks.ts';

const documents = [
  'README.md',
  'AGENTS.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
  ...(await Array.fromAsync(glob('docs/**/*.md', { exclude: ['docs/evaluation/**'] }))),
].filter((file) => !file.startsWith('docs/decisions/'));
const blocks = documents.flatMap(codeBlocks);

/** Blocks that a test runs: the document, the language or the name of the block (all if empty), and the test. */
const ranBy: readonly (readonly [file: string, block: string, test: string])[] = [
  ['README.md', 'npm init', 'test/whole/installed.test.ts'],
  ['docs/app-developers.md', '', 'test/docs/app_developers.test.ts'],
  ['docs/existing-app.md', '', 'test/examples/existing_app.test.ts'],
  ['docs/operations.md', 'nginx', 'test/interoperability/nginx.test.ts'],
  ['docs/outbox.md', '', 'test/examples/outbox.test.ts'],
  ['docs/production.md', '', 'test/whole/production_page.test.ts'],
  ['docs/subscribers.md', '', 'test/verify/subscribers_page.test.ts'],
];

/** Blocks that cannot be checked, by the document and the language, and why. */
const unchecked: Readonly<Record<string, string>> = {
  'docs/clients.md apache':
    'a fragment of a configuration: test/interoperability/apache.test.ts runs the same settings with other values',
  'docs/clients.md go':
    'a fragment without imports: test/interoperability/clients.test.ts runs the same calls in a program',
  'docs/operations.md js':
    'its package is not installed: test/whole/tracing.test.ts loads the same SDK, with the address of a collector',
  'docs/protect.md text': 'a drawing',
  'docs/publishing.md text': 'the signature of a function: test/docs/sql_blocks.test.ts compares it',
  'docs/upgrading.md text': 'messages of the server: test/platform.test.ts expects them',
};

/** Programs of others in shell blocks, and why their lines are not run. */
const otherPrograms: Readonly<Record<string, string>> = {
  'cd mkdir cp install useradd find': 'change the system',
  'docker kubectl helm':
    'need a container runtime or a cluster: test/whole/deployment.test.ts checks their files',
  systemctl: 'needs systemd as the first process: test/whole/deployment.test.ts verifies the unit',
  'createdb pg_dump pg_restore psql':
    'need tools of the same version: test/whole/production.test.ts runs such commands',
  'oauth2-proxy': 'not installed here; tried by hand, as the page says',
};
const others = Object.keys(otherPrograms).flatMap((names) => names.split(' '));

const kinds: Readonly<Record<string, (block: CodeBlock, t: TestContext) => unknown>> = {
  json: ({ text }) => void JSON.parse(text),
  yaml: ({ text }) => void parseYaml(text),
  sh: checkShell,
  ts: () => undefined,
  js: () => undefined,
  sql: () => undefined,
  python: checkPython,
};
/** Kinds of which another test checks all blocks. */
const checkedTogether = new Map([
  ['ts', 'below'],
  ['js', 'below'],
  ['sql', 'test/docs/sql_blocks.test.ts'],
]);

const placeOf = ({ file, line }: CodeBlock) => `${file}:${line}`;
const testOf = ({ file, language, name, text }: CodeBlock) =>
  ranBy.find(
    ([of, block]) =>
      of === file && (block === '' || block === language || name === block || text.startsWith(block)),
  );
const remaining = blocks.filter((block) => testOf(block) === undefined);
const isListed = ({ file, language }: CodeBlock) => unchecked[`${file} ${language}`] !== undefined;

test('each code block is run, checked by its kind, or listed with a reason', () => {
  assert.ok(blocks.length > 100, `${blocks.length} were found`);
  const lost = remaining.filter((block) => kinds[block.language] === undefined && !isListed(block));
  assert.deepEqual(lost.map(placeOf), []);
});

test('the lists of this file name blocks that exist, and tests that name the document', () => {
  for (const entry of ranBy) {
    const [file, , path] = entry;
    assert.ok(
      blocks.some((block) => testOf(block) === entry),
      `${entry}`,
    );
    const program =
      path === 'test/verify/subscribers_page.test.ts' ? 'test/support/webhooks/subscribers_page.ts' : path;
    assert.ok(readFileSync(program, 'utf8').includes(file), `${path} does not name ${file}`);
  }
  const reasons = [...Object.values(unchecked), ...Object.values(otherPrograms)].join('\n');
  for (const [path] of reasons.matchAll(/test\/[\w/]+\.test\.ts/g)) assert.ok(existsSync(path), path);
  const keys = remaining.map(({ file, language }) => `${file} ${language}`);
  assert.deepEqual(
    Object.keys(unchecked).filter((key) => !keys.includes(key)),
    [],
  );
  const programs = remaining
    .filter(({ language }) => language === 'sh')
    .flatMap(({ text }) => commandsIn(text));
  assert.deepEqual(
    others.filter((name) => !programs.some(([first]) => first === name)),
    [],
  );
});

test('each block of docs/subscribers.md is named by a test', async () => {
  const files = await Array.fromAsync(glob('test/{verify,support/webhooks}/subscribers_page*.ts'));
  const text = files.map((file) => readFileSync(file, 'utf8')).join('\n');
  const names = codeBlocks('docs/subscribers.md').map(({ name }) => name);
  assert.ok(names.length > 20);
  assert.deepEqual(
    names.filter((name) => !text.includes(name)),
    [],
  );
});

for (const block of remaining) {
  const check = kinds[block.language];
  if (check === undefined || checkedTogether.has(block.language)) continue;
  test(`${placeOf(block)}: ${block.language} is valid`, async (t) => {
    await check(block, t);
  });
}

for (const language of ['ts', 'js'] as const) {
  test(`${language} blocks type-check against the real exports`, async (t) => {
    const own = remaining.filter((block) => block.language === language && !isListed(block));
    assert.deepEqual(await typeErrors(t, own), []);
  });
}

test('every name that blocks are given is used by one', () => {
  const text = remaining
    .filter(({ language }) => /^[tj]s$/.test(language))
    .map((block) => block.text)
    .join('\n');
  const stale = Object.keys(given).filter((name) => !new RegExp(`\\b${name}\\b`).test(text));
  assert.deepEqual(stale, []);
});

const operations = referenceParts(await loadPlatform(null)).flatMap((part) => part.operations);
const shapes = operations.map(({ method, path }) => ({
  method: method.toUpperCase(),
  pattern: new RegExp(`^${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`),
}));

function isServed(method: string, path: string): boolean {
  if (
    Object.keys(otherAddresses).some(
      (start) => path === start || (start !== '/' && path.startsWith(`${start}/`)),
    )
  )
    return true;
  return (
    ['/api', '/me'].includes(path) ||
    shapes.some((shape) => shape.method === method && shape.pattern.test(path))
  );
}

async function checkShell({ text }: CodeBlock): Promise<void> {
  const { scripts } = JSON.parse(readFileSync('package.json', 'utf8')) as { scripts: Record<string, string> };
  for (const words of commandsIn(text)) {
    const [program = '', verb = '', name = ''] = words;
    const request = requestOf(words);
    if (isNuncio(words)) await checkCommand(nuncioWords(words));
    else if (request !== null)
      assert.ok(isServed(request.method, request.path), `${request.method} ${request.path}`);
    else if (program === 'npm' && verb === 'run') assert.ok(scripts[name] !== undefined, `npm run ${name}`);
    else if (program === 'npm') assert.match(verb, /^(?:ci|start|test|init|install|pack)$/);
    else if (program === 'node') assert.match(verb, /create\.js$/);
    else assert.ok(others.includes(program), `${program} is no program that otherPrograms lists`);
  }
}

function checkPython({ text }: CodeBlock, t: TestContext): unknown {
  const { error, stderr, status } = spawnSync(
    'python3',
    ['-c', 'import ast, sys; ast.parse(sys.stdin.read())'],
    {
      input: text,
      encoding: 'utf8',
    },
  );
  if (error !== undefined) return t.skip('Python is not installed');
  return assert.equal(status, 0, stderr);
}

/** Parses the words as the command line does. With `--help`, nothing else happens. */
async function checkCommand(words: readonly string[]): Promise<void> {
  const lines: string[] = [];
  const print = (line: string) => void lines.push(line);
  const shell = { environment: {}, folder: process.cwd(), print, printError: print };
  assert.equal(
    await runCommandLine([...words, '--help'], shell),
    0,
    `nuncio ${words.join(' ')}: ${lines.join(' ')}`,
  );
}

test('commands in the text exist, with their options', async () => {
  let count = 0;
  for (const file of documents) {
    for (const code of inlineCode(file)) {
      const [, rest = ''] = /^(?:npx |npm run -s )?nuncio (?:-- )?([a-z].*)$/.exec(code) ?? [];
      if (rest === '' || /[<…]/.test(rest)) continue;
      count += 1;
      await checkCommand(nuncioWords(commandsIn(`nuncio ${rest}`)[0] ?? []));
    }
  }
  assert.ok(count > 50, `${count} were found`);
});

test('operations in the text are in the route table', () => {
  const wrong: string[] = [];
  let count = 0;
  for (const file of documents) {
    for (const code of inlineCode(file)) {
      const [, method = '', path = ''] = /^(GET|POST|PUT|PATCH|DELETE) (\/[^ ?]*)/.exec(code) ?? [];
      // Any collection: `POST /<name>/<id>/<action>`.
      if (path === '' || path.startsWith('/<') || path.includes('…')) continue;
      count += 1;
      if (!isServed(method, path.replaceAll(/<[^>]+>|\{\w+\}/g, 'x'))) wrong.push(`${file}: ${code}`);
    }
  }
  assert.deepEqual(wrong, []);
  assert.ok(count > 100, `${count} were found`);
});
