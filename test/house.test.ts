/**
 * The rules of this repository, enforced by a program: which folder may import which, no import cycles, one reader of
 * the environment, no unreachable file.
 */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { dirname, join, normalize } from 'node:path';
import { before, test } from 'node:test';

/**
 * Rows from bottom to top. A folder may import folders in lower rows, and itself. Folders in one row never import
 * each other, except those in the ground row, which may.
 */
const rows: readonly (readonly string[])[] = [
  ['shared'],
  ['listen'],
  ['config', 'crypto', 'database', 'http', 'egress', 'version.ts', 'garbage_collection.ts'],
  ['mail'],
  ['accounts', 'audit', 'clients', 'connections'],
  ['grants'],
  ['apps', 'notices'],
  ['events'],
  ['oauth', 'collections', 'webhooks'],
  ['doctor'],
  ['web', 'api', 'mcp'],
  ['platform.ts'],
  ['reference_parts.ts', 'conversion_thread.ts', 'resources.ts'],
  ['server.ts', 'index.ts'],
  ['commands'],
  ['cli.ts', 'library.ts'],
  ['main.ts'],
];

const groundRow = 2;

/** The same within `webhooks`. The files directly in `webhooks` may import all of it. */
const webhookRows = [['subscriptions'], ['sending'], ['log'], ['fan_out'], ['lanes'], ['reader'], ['engine']];

/** Folders directly in `test/` that do not match a room of `src/`. */
const testFolders = [
  /** The documents: their reference, links and code. */
  'docs',
  /** Each example, run as its readers run it. */
  'examples',
  /** Attacks that involve several rooms. */
  'hostile',
  /** Clients and suites that this project did not write. */
  'interoperability',
  /** Code that tests share. */
  'support',
  /** Cases for libraries in several languages. */
  'vectors',
  /** The whole system: several servers, faults, the published package. */
  'whole',
];

/** Tests directly in `test/` about the repository. Every other one is named after a file of `src/`. */
const testsOfTheRepository = ['conformance.test.ts', 'current_test.test.ts', 'house.test.ts'];

/** Independent folders: they import nothing from the others but `shared`, and the others import nothing from them. */
const apart = ['protect', 'outbox', 'verify', 'console'];

/** Files that are run or published. Every other file must be reachable from these. */
const entries = [
  'src/main.ts',
  'src/console/main.ts',
  'src/console/vite.config.ts',
  'src/index.ts',
  'src/library.ts',
  'src/outbox/outbox.ts',
  'src/protect/protect.ts',
  'src/verify/verify.ts',
  'src/conversion_thread.ts',
  'src/webhooks/engine/engine_thread.ts',
];

interface SourceFile {
  path: string;
  /** Paths of the project's own files that it imports, including types. */
  imports: string[];
  text: string;
}

const files = new Map<string, SourceFile>();

before(async () => {
  for await (const path of glob('{src,test,bench,examples,site}/**/*.{ts,tsx}', {
    exclude: ['**/node_modules/**'],
  })) {
    const text = readFileSync(path, 'utf8');
    files.set(path, { path, text, imports: readImports(path, text) });
  }
});

function readImports(path: string, text: string): string[] {
  const specifiers = text.matchAll(/(?:\bfrom|\bimport)\s*\(?\s*'(\.{1,2}\/[^'$]+)'/g);
  return [...specifiers].map(([, specifier]) => normalize(join(dirname(path), specifier as string)));
}

function sources(): SourceFile[] {
  return [...files.values()].filter(({ path }) => path.startsWith('src/'));
}

/** Returns the folder below src, or the name of a file directly in src. */
function roomOf(path: string): string {
  return path.split('/')[1] as string;
}

function rowOf(room: string): number {
  return rows.findIndex((row) => row.includes(room));
}

test('every folder of src has its place', () => {
  const homeless = [...new Set(sources().map(({ path }) => roomOf(path)))].filter(
    (room) => rowOf(room) < 0 && !apart.includes(room),
  );
  assert.deepEqual(homeless, []);
});

test('imports go down only, and siblings do not import each other', () => {
  const wrong: string[] = [];
  for (const { path, imports } of sources()) {
    for (const imported of imports.filter((target) => target.startsWith('src/'))) {
      const [from, to] = [roomOf(path), roomOf(imported)];
      const ground = rowOf(from) === groundRow && rowOf(to) === groundRow;
      const leaves = (apart.includes(from) && to !== 'shared') || apart.includes(to);
      const goesUp = rowOf(to) >= rowOf(from) && !apart.includes(from);
      if (from !== to && !ground && (leaves || goesUp)) wrong.push(`${path} imports ${imported}`);
    }
  }
  assert.deepEqual(wrong, []);
});

test('the same within webhooks', () => {
  const roomOfPath = (path: string) => (path.split('/').length >= 4 ? (path.split('/')[2] as string) : null);
  const rowOfRoom = (room: string) => webhookRows.findIndex((row) => row.includes(room));
  const wrong: string[] = [];
  for (const { path, imports } of sources().filter((file) => file.path.startsWith('src/webhooks/'))) {
    const from = roomOfPath(path);
    if (from === null) continue;
    for (const imported of imports.filter((target) => target.startsWith('src/webhooks/'))) {
      const to = roomOfPath(imported);
      if (to === null || (to !== from && rowOfRoom(to) >= rowOfRoom(from)) || rowOfRoom(to) < 0)
        wrong.push(`${path} imports ${imported}`);
    }
  }
  assert.deepEqual(wrong, []);
});

test('src imports nothing from tests, benchmarks or examples', () => {
  const wrong = sources().flatMap(({ path, imports }) =>
    imports
      .filter((target) => /^(test|bench|examples)\//.test(target))
      .map((target) => `${path} → ${target}`),
  );
  assert.deepEqual(wrong, []);
});

test('imports name files that exist', () => {
  const missing = [...files.values()].flatMap(({ path, imports }) =>
    imports.filter((target) => !existsSync(target)).map((target) => `${path} → ${target}`),
  );
  assert.deepEqual(missing, []);
});

test('there are no circles', () => {
  const done = new Set<string>();
  const circles: string[] = [];
  const visit = (path: string, trail: string[]): void => {
    if (trail.includes(path)) circles.push([...trail.slice(trail.indexOf(path)), path].join(' → '));
    if (done.has(path) || trail.includes(path)) return;
    for (const imported of files.get(path)?.imports ?? []) visit(imported, [...trail, path]);
    done.add(path);
  };
  for (const path of files.keys()) visit(path, []);
  assert.deepEqual(circles, []);
});

test('no circle between folders either', () => {
  const arrows = new Map<string, Set<string>>();
  for (const { path, imports } of sources()) {
    for (const imported of imports.filter((target) => target.startsWith('src/'))) {
      const [from, to] = [roomOf(path), roomOf(imported)];
      if (from !== to) arrows.set(from, (arrows.get(from) ?? new Set()).add(to));
    }
  }
  const circles: string[] = [];
  const visit = (room: string, trail: string[]): void => {
    if (trail.includes(room)) {
      circles.push([...trail.slice(trail.indexOf(room)), room].join(' → '));
      return;
    }
    for (const next of arrows.get(room) ?? []) visit(next, [...trail, room]);
  };
  for (const room of arrows.keys()) visit(room, []);
  assert.deepEqual([...new Set(circles)], []);
});

test('process.env is read in one file of src', () => {
  // The console runs in a browser. Its mentions of `process.env` are text in the code that it shows.
  const onServer = sources().filter(({ path }) => !path.startsWith('src/console/'));
  const readers = onServer.filter(({ text }) =>
    /process\.env\b/.test(text.replaceAll(/\/\*[\s\S]*?\*\//g, '')),
  );
  assert.deepEqual(
    readers.map(({ path }) => path),
    ['src/config/environment.ts'],
  );
});

test('every file of src is reached from what is run or published', () => {
  const reached = reachedFrom(entries);
  const lost = sources().filter(({ path }) => !reached.has(path));
  assert.deepEqual(
    lost.map(({ path }) => path),
    [],
  );
});

test('every other file is reached from a test, a script, a benchmark or a test’s process', () => {
  const others = [...files.keys()].filter((path) => !path.startsWith('src/'));
  const reached = reachedFrom(others.filter(isRunByItself));
  assert.deepEqual(
    others.filter((path) => !reached.has(path)),
    [],
  );
});

test('tests mirror sources: each folder of tests is a room of src or in a list', () => {
  const folders = readdirSync('test', { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => entry.parentPath);
  const misplaced = [...new Set(folders)]
    .filter((path) => path !== 'test' && !testFolders.includes(path.split('/')[1] as string))
    .filter((path) => !existsSync(path.replace(/^test/, 'src')));
  assert.deepEqual(misplaced, []);
  const strays = readdirSync('test')
    .filter((name) => name.endsWith('.ts') && !testsOfTheRepository.includes(name))
    .filter((name) => !existsSync(join('src', name.replace('.test.ts', '.ts'))));
  assert.deepEqual(strays, []);
});

function reachedFrom(paths: readonly string[]): Set<string> {
  const reached = new Set<string>();
  const reach = (path: string): void => {
    if (reached.has(path)) return;
    reached.add(path);
    for (const imported of files.get(path)?.imports ?? []) reach(imported);
  };
  for (const path of paths) reach(path);
  return reached;
}

function isRunByItself(path: string): boolean {
  if (path.endsWith('.test.ts') || /^bench\/[^/]+\.ts$/.test(path)) return true;
  if (readFileSync('package.json', 'utf8').includes(path)) return true;
  const name = path.split('/').at(-1) as string;
  return [...files.values()].some(
    ({ text }) => text.includes(`/${name}'`) && !text.includes(`from './${name}'`),
  );
}

/** A longer file needs a reason. */
const fileLinesMax = { source: 400, test: 700 };
const longFiles: Readonly<Record<string, string>> = {
  'src/console/api/generated.ts': 'generated',
};

test('no file has more lines than the limit unless it is listed with a reason', () => {
  const long = [...files.values()].filter(({ path, text }) => {
    const max = path.startsWith('test/') ? fileLinesMax.test : fileLinesMax.source;
    return text.split('\n').length - 1 > max && longFiles[path] === undefined;
  });
  assert.deepEqual(
    long.map(({ path }) => path),
    [],
  );
});

test('a page of decisions has at most 150 lines: its subject is split before', () => {
  const folder = 'docs/decisions';
  const long = readdirSync(folder).filter(
    (name) => readFileSync(join(folder, name), 'utf8').split('\n').length - 1 > 150,
  );
  assert.deepEqual(long, []);
});

/** Biome measures functions, and accepts a longer one only with `// biome-ignore … : <reason>` above it. */
test('Biome limits the length of functions', () => {
  const { linter, overrides } = JSON.parse(readFileSync('biome.json', 'utf8'));
  const rule = 'noExcessiveLinesPerFunction';
  assert.deepEqual(linter.rules.complexity[rule], { level: 'error', options: { maxLines: 80 } });
  const exempt = overrides.filter((each: object) => JSON.stringify(each).includes(rule));
  assert.deepEqual(
    exempt.flatMap(({ includes }: { includes: string[] }) => includes.filter((path) => path !== 'test/**')),
    [],
    'only tests are exempt',
  );
});

test('no statement trusts what every role may do: advisory locks and notifications', () => {
  const trusting = /pg_notify\(|pg_(?:try_)?advisory/;
  // The keys of the locks in idempotency.ts cannot be predicted.
  const found = sources().filter(
    ({ path, text }) => trusting.test(text) && path !== 'src/http/idempotency.ts',
  );
  assert.deepEqual(
    found.map(({ path }) => path),
    [],
    'use announce() and take_lock()',
  );
  const announce = /create function announce\([\s\S]*?\nend \$\$;/;
  const foundation = readFileSync('migrations/0001_foundation.sql', 'utf8');
  assert.match(announce.exec(foundation)?.[0] ?? '', /perform pg_notify\(/);
  const migrations = readdirSync('migrations').filter((name) => {
    const text = readFileSync(`migrations/${name}`, 'utf8');
    return trusting.test(name === '0001_foundation.sql' ? text.replace(announce, '') : text);
  });
  assert.deepEqual(migrations, [], 'only announce() sends notifications');
});

/** Files that compare messages of their own, of Node.js or of a library, which have one language. PostgreSQL's are translated. */
const comparesMessages = new Set([
  'src/commands/failure.ts',
  'src/database/database.ts',
  'src/main.ts',
  'src/oauth/error_responses.ts',
  'src/oauth/first_call.ts',
  'src/web/upstream/upstream_pages.ts',
]);

test('no source compares the text of an error, which PostgreSQL translates', () => {
  const compares =
    /\.message\.(?:includes|startsWith|endsWith|match|search)\(|\.(?:test|exec)\([^()]*\.message\)|\.message [!=]==/;
  const found = [...files.values()].filter(
    ({ path, text }) => path.startsWith('src/') && !path.startsWith('src/console/') && compares.test(text),
  );
  assert.deepEqual(
    found.map(({ path }) => path).filter((path) => !comparesMessages.has(path)),
    [],
  );
  // The driver's own messages.
  const texts = files.get('src/database/database.ts')?.text ?? '';
  assert.doesNotMatch(texts, /'cached plan|\/cached plan/);
});

test('migrations are numbered in one sequence without gaps', () => {
  const names = readdirSync('migrations').sort();
  assert.deepEqual(
    names.filter((name) => !/^\d{4}_[a-z_]+\.sql$/.test(name)),
    [],
  );
  assert.deepEqual(
    names.map((name) => Number(name.slice(0, 4))),
    names.map((_name, index) => index + 1),
  );
});

test('a collection cannot have the name of a table of the migrations', () => {
  const names = readdirSync('migrations').flatMap((name) =>
    [...readFileSync(`migrations/${name}`, 'utf8').matchAll(/^create (?:unlogged )?table (\w+)/gm)].map(
      ([, table]) => table as string,
    ),
  );
  const reserved =
    /reservedNames = new Set\(\s*`([^`]*)`/.exec(readFileSync('src/platform.ts', 'utf8'))?.[1] ?? '';
  assert.deepEqual(
    names.filter((name) => !reserved.split(/\s+/).includes(name)),
    [],
  );
});

/**
 * Words and names that docs/glossary.md replaces, each with its replacement. Add a word when its last use is gone.
 * Move it from the sources to everywhere when tests, benchmarks and examples no longer use it either.
 */
const bannedWords: Readonly<Record<'everywhere' | 'sources', readonly (readonly [RegExp, string])[]>> = {
  everywhere: [
    [/\bhinders\b/i, 'blocks'],
    [/answerOnce|sendAnswer/, 'runIdempotent, sendResponse'],
    [/isStill\b/, 'isOnHold'],
    [/newsMs|takeAwayLate|noMore\b/, 'maxStalenessMs, or a name of the glossary'],
    [/lane_keeper|standing_lanes|stretch_reader/, 'lane_leases, lane_holds, delivery_reader'],
    [/time-out/i, 'timeout'],
    [/repetition/i, 'retry'],
    [/of no account/i, 'does not matter'],
    [/\bsendOnce\b/, 'sendIdempotent'],
    [/\bin a circle\b/i, 'deadlock'],
  ],
  sources: [
    [/(?<!'held_stretches', ')standstill/i, 'delivery hold'],
    [/under way/i, 'in flight'],
    [/\bgoes on\b/i, 'continues'],
    [/\banew\b/i, 'again'],
  ],
};

test('no file uses a word that the glossary replaces', async () => {
  const wrong: string[] = [];
  for await (const path of glob('{src,scripts,migrations,test,bench,examples}/**/*.{ts,tsx,sql}', {
    exclude: ['**/node_modules/**', 'test/house.test.ts', 'src/console/api/generated.ts'],
  })) {
    const isSource = /^(src|scripts|migrations)\//.test(path);
    const words = [...bannedWords.everywhere, ...(isSource ? bannedWords.sources : [])];
    for (const [index, line] of readFileSync(path, 'utf8').split('\n').entries()) {
      for (const [word, instead] of words) {
        const found = word.exec(line);
        if (found !== null) wrong.push(`${path}:${index + 1}: write ${instead} instead of ${found[0]}`);
      }
    }
  }
  assert.deepEqual(wrong, []);
});

test('no file has the marks of an unfinished merge', (t) => {
  const { stdout, status } = spawnSync('git', ['grep', '-nE', '^(<{7}|>{7})( |$)'], { encoding: 'utf8' });
  // `git grep` exits with 1 if it finds nothing.
  if (status !== 0 && status !== 1) return t.skip('needs git, and a clone');
  assert.equal(stdout, '');
});

/** A longer name tells several behaviors, or tells the one twice. */
const nameWordsMax = 18;

test('test names have a limited number of words', () => {
  const name = /(?<![\w.])(?:\w+\.)?test\(\s*(['"`])((?:\\.|(?!\1)[^\\])*)\1/g;
  const tests = [...files.values()].filter(({ path }) => path.endsWith('.test.ts'));
  const names = tests.flatMap(({ path, text }) =>
    [...text.matchAll(name)].map(([, , found]) => ({ path, name: found as string })),
  );
  assert.ok(names.length > tests.length, 'the names are found');
  const long = names.filter((each) => wordsOf(each.name) > nameWordsMax);
  assert.deepEqual(
    long.map((each) => `${each.path}: ${each.name}`),
    [],
  );
});

/** Counts the words of a name. A value in a template literal counts as one. */
function wordsOf(name: string): number {
  return name
    .replaceAll(/\$\{[^}]*\}/g, 'value')
    .trim()
    .split(/\s+/).length;
}

test('docs/dependencies.md has each production dependency, with its version, and each install script', () => {
  const page = readFileSync('docs/dependencies.md', 'utf8');
  const { dependencies, optionalDependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
  const { packages } = JSON.parse(readFileSync('package-lock.json', 'utf8')) as {
    packages: Record<string, { version: string; dev?: true; devOptional?: true; hasInstallScript?: true }>;
  };
  const rows = [...page.matchAll(/^\| `([^`]+)` \| [^|]+ \| ([^ |]+) \|/gm)].map(([, name, version]) => [
    name,
    version,
  ]);
  // Kysely is not a dependency of the package, because the package includes it.
  const expected = [...Object.keys(dependencies), 'kysely'].map((name) => [
    name,
    packages[`node_modules/${name}`]?.version,
  ]);
  assert.deepEqual(rows.toSorted(), expected.toSorted());
  const scripts = Object.entries(packages)
    .filter(
      ([path, { dev, devOptional, hasInstallScript }]) =>
        path !== '' && hasInstallScript && !dev && !devOptional,
    )
    .map(([path]) => path.replace('node_modules/', ''));
  assert.deepEqual(scripts.toSorted(), Object.keys(optionalDependencies).toSorted());
  for (const name of scripts) assert.ok(page.includes(`\`${name}\``), name);
});
