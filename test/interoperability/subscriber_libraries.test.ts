/**
 * The subscriber's libraries in Python, Go and Java: their own tests, with the vectors that all languages share and a real
 * PostgreSQL, and `nuncio/verify` in Bun and Deno. Each test is skipped, with the reason, if its language or registry is missing.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cp, readFile, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import { createForeignDatabase } from '../support/database/database.ts';
import { prepareNodePackage } from '../support/programs/node_package.ts';
import {
  buildFolder,
  buildJar,
  clients,
  type Failure,
  installWheel,
  missingTool,
  vectorFile,
} from '../support/programs/subscriber_libraries.ts';
import { bundleVerify } from '../support/programs/verify_bundle.ts';

const run = promisify(execFile);
const { cases } = JSON.parse(await readFile(vectorFile, 'utf8')) as { cases: { error?: string }[] };
/** Languages whose types exclude a parsed body leave these out. */
const parsedCount = cases.filter(({ error }) => error === 'body-parsed').length;

async function foreignUrl(t: TestContext): Promise<string> {
  const database = await createForeignDatabase();
  t.after(() => database.drop());
  return database.url;
}

/** The same for JDBC, which knows no Unix sockets: connections go through a port of this process. */
async function jdbcUrl(t: TestContext): Promise<string> {
  const url = new URL(await foreignUrl(t));
  const folder = url.searchParams.get('host') ?? url.hostname;
  const port = url.port || '5432';
  const proxy = createServer((client) => {
    const target = folder.startsWith('/')
      ? connect(join(folder, `.s.PGSQL.${port}`))
      : connect(Number(port), folder);
    for (const [from, to] of [
      [client, target],
      [target, client],
    ] as const)
      from.on('error', () => to.destroy()).pipe(to);
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  t.after(() => void proxy.close());
  const options = new URLSearchParams({
    user: decodeURIComponent(url.username),
    password: decodeURIComponent(url.password),
  });
  return `jdbc:postgresql://127.0.0.1:${(proxy.address() as AddressInfo).port}${url.pathname}?${options}`;
}

async function inFolder(
  t: TestContext,
  command: string,
  words: string[],
  options: { cwd: string; env?: NodeJS.ProcessEnv },
): Promise<string | undefined> {
  try {
    const { stdout, stderr } = await run(command, words, {
      ...options,
      env: { ...process.env, ...options.env },
    });
    return stdout + stderr;
  } catch (error) {
    const failure = error as Failure;
    const missing = missingTool(failure);
    if (missing === undefined)
      throw new Error(`${failure.message}\n${failure.stdout}\n${failure.stderr}`, { cause: error });
    t.skip(missing);
    return undefined;
  }
}

test('the wheel of clients/python passes its tests with every vector and PostgreSQL', async (t) => {
  const installed = await installWheel(t);
  if ('missing' in installed) return t.skip(installed.missing);
  const env = { ...installed.env, VECTORS: vectorFile, DATABASE_URL: await foreignUrl(t) };
  const folder = await buildFolder(t, 'python-tests');
  await cp(join(clients, 'python/tests'), folder, { recursive: true });
  const { stdout, stderr } = await run(installed.python, ['-m', 'unittest', 'discover'], {
    cwd: folder,
    env,
  });
  assert.match(stderr, /\nOK\n$/);
  assert.ok(stdout.includes(`${cases.length} vectors`), stdout);
  assert.ok(!stdout.includes('left out'), stdout);
});

test('the types of clients/python are complete', async (t) => {
  const installed = await installWheel(t);
  if ('missing' in installed) return t.skip(installed.missing);
  const cwd = join(clients, 'python');
  const words = ['-m', 'mypy', '--cache-dir', '/dev/null', 'src', 'tests/test_vectors.py'];
  const { stdout } = await run(installed.python, words, {
    cwd,
    env: { ...installed.env, PYTHONPATH: '', MYPYPATH: 'src' },
  });
  assert.match(stdout, /^Success/);
  const { stdout: names } = await run(installed.python, ['-m', 'zipfile', '--list', installed.wheel]);
  assert.match(names, /nuncio_verify\/py\.typed/);
});

test('clients/go passes its tests with every vector', async (t) => {
  const cwd = join(clients, 'go');
  const output = await inFolder(t, 'go', ['test', '-count=1', '-v', './...'], {
    cwd,
    env: { VECTORS: vectorFile },
  });
  if (output === undefined) return;
  assert.ok(output.includes(`${cases.length - parsedCount} vectors`), output.slice(-2_000));
  assert.equal(await inFolder(t, 'gofmt', ['-l', '.'], { cwd }), '');
  assert.equal(await inFolder(t, 'go', ['vet', './...'], { cwd }), '');
  const listed = await inFolder(t, 'go', ['list', '-m', 'all'], { cwd });
  assert.equal(listed?.trim(), 'nuncio.example/verify', 'the standard library alone');
});

test('the SQL stores of clients/go handle deliveries once in SQLite and PostgreSQL', async (t) => {
  const output = await inFolder(t, 'go', ['test', '-count=1', '-v', './...'], {
    cwd: join(clients, 'go/storetest'),
    env: { DATABASE_URL: await foreignUrl(t) },
  });
  if (output === undefined) return;
  assert.match(output, /--- PASS: TestPostgres /);
  assert.match(output, /--- PASS: TestSQLite /);
});

test('clients/java passes its tests with every vector and PostgreSQL, and has no dependencies', async (t) => {
  const built = await buildJar(t, { DATABASE_URL_JDBC: await jdbcUrl(t) });
  if ('missing' in built) return t.skip(built.missing);
  const report = (name: string) =>
    readFile(join(built.folder, 'surefire-reports', `TEST-nuncio.verify.${name}.xml`), 'utf8');
  const vectors = await report('VectorsTest');
  assert.match(vectors, new RegExp(`tests="${cases.length - parsedCount + 1}" errors="0" skipped="0"`));
  assert.match(await report('HandlingTest'), /errors="0" skipped="0" failures="0"/);
  const scopes = (await readFile(join(clients, 'java/pom.xml'), 'utf8')).match(
    /<scope>.*<\/scope>|<dependency>/g,
  );
  assert.equal(scopes?.length, 6);
  assert.equal(scopes?.filter((text) => text === '<scope>test</scope>').length, 3);
});

const program = `
const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const wrong = [];
for (const { secrets, public_keys, keys_fail, header_names, tolerance, body_base64, ...each } of vectors.cases) {
  const options = {
    ...each,
    secrets,
    body: body_base64 ? bytesOf(body_base64) : each.body,
    publicKeys: keys_fail ? () => Promise.reject(new Error('no keys')) : public_keys,
    headerNames: header_names,
    tolerance: tolerance ?? 1e12,
  };
  const outcome = await nuncio.verify(options).catch((error) => error.code ?? String(error));
  if (JSON.stringify(outcome) !== JSON.stringify(each.delivery ?? each.error)) wrong.push([each.name, outcome]);
}
console.log(JSON.stringify({ count: vectors.cases.length, wrong }));
`;

const runtimes = [
  { name: 'Bun', package: '@oven/bun-linux-x64', version: '1.4.5', program: 'bin/bun', words: ['run'] },
  {
    name: 'Deno',
    package: '@deno/linux-x64-glibc',
    version: '2.9.6',
    program: 'deno',
    words: ['run', '--allow-read'],
  },
];

for (const runtime of runtimes) {
  test(`nuncio/verify passes every vector in ${runtime.name}`, async (t) => {
    if (process.platform !== 'linux' || process.arch !== 'x64') return t.skip('another platform');
    const prepared = await prepareNodePackage(runtime.package, runtime.version);
    if ('missing' in prepared) return t.skip(prepared.missing);
    const folder = await buildFolder(t, 'runtime');
    const vectors = await readFile(vectorFile, 'utf8');
    await writeFile(
      join(folder, 'program.mjs'),
      `${await bundleVerify()};\nconst vectors = ${vectors};\n${program}`,
    );
    const { stdout } = await run(join(prepared.folder, runtime.program), [...runtime.words, 'program.mjs'], {
      cwd: folder,
      env: { PATH: process.env.PATH, HOME: folder, DENO_DIR: folder },
    });
    assert.deepEqual(JSON.parse(stdout), { count: cases.length, wrong: [] });
  });
}
