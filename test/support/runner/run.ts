/**
 * `npm test`: starts one PostgreSQL for the whole run, runs tests, and stops PostgreSQL. The parameters name rooms
 * (`webhooks/lanes`) or files (`test/webhooks/lanes/hosts.test.ts`), of which every test runs. Without any, `npm test` leaves out
 * what only repeats behavior in other environments (tier.ts).
 *
 *   --all                           leaves nothing out: `npm run test:all`
 *   --rest                          only what `npm test` leaves out
 *   --fast                          only files that need no server, no database and no browser
 *   --test-concurrency=<files>      files that run at the same time
 *   --test-timeout=<milliseconds>   after which a test fails
 *   --test-name-pattern=<pattern>   only tests whose names match
 */

import { execFile } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { fileURLToPath } from 'node:url';
import { parseArgs, promisify } from 'node:util';
import { buildConsole } from '../../../scripts/build_console.ts';
import { missingFrom } from './checklist.ts';
import { type FileCost, shareFiles } from './queue.ts';
import { collectRan, type RunResult, slowestFiles } from './ran_tests.ts';
import {
  findTestFiles,
  isInTier,
  longestFirst,
  needsServer,
  testFileName,
  usesConsole,
} from './test_files.ts';
import { startTestPostgres } from './test_postgres.ts';
import { type Tier, tierVariable } from './tier.ts';

const { values: options, positionals: names } = parseArgs({
  allowPositionals: true,
  options: {
    all: { type: 'boolean', default: false },
    rest: { type: 'boolean', default: false },
    fast: { type: 'boolean', default: false },
    'test-concurrency': { type: 'string' },
    'test-timeout': { type: 'string', default: '600000' },
    'test-name-pattern': { type: 'string', multiple: true },
  },
});

/**
 * Tests wait for much of their time, so several files share a processor. A higher number gains nothing, and exhausts the
 * connections.
 */
const filesPerProcessor = 3;

/**
 * A worker starts a server for most files, and each leaves garbage. With V8's usual limits, a sixth of a worker's processor time goes to
 * collecting it early.
 */
const roomyHeap = [
  '--initial-heap-size=384',
  '--heap-growing-percent=400',
  '--min-semi-space-size=32',
  '--max-semi-space-size=32',
];

/** A file fails when it runs longer than this many test timeouts. */
const testsPerFileMax = 3;
const fileTimeoutMs = testsPerFileMax * Number(options['test-timeout']);
const concurrency = Number(options['test-concurrency'] ?? filesPerProcessor * availableParallelism());

const tier: Tier = options.rest ? 'rest' : options.all || names.length > 0 ? 'all' : 'first';
const found = (await findTestFiles(names).catch(stopWithoutTests)).filter((path) => isInTier(path, tier));
const files = longestFirst(options.fast ? found.filter((path) => !needsServer(path)) : found);
const namePatterns = options['test-name-pattern'];
process.env.NODE_COMPILE_CACHE = fileURLToPath(
  new URL('../../../node_modules/.cache/compiled', import.meta.url),
);
if (files.length > 1) await warmCompileCache();
// Once here, instead of once in each file.
if (files.some(usesConsole) && (await buildConsole())) process.env.TEST_CONSOLE_IS_BUILT = '1';
const postgres = options.fast ? undefined : await startTestPostgres();
let isSuccess = false;
try {
  const { ran, durations, costs, hasPassed } = await runFiles();
  // A run with name patterns omits tests on purpose.
  const missing = namePatterns === undefined ? missingFrom(ran, files.map(testFileName)) : [];
  for (const text of missing) process.stderr.write(`checklist: ${text}\n`);
  const lost = files.map(testFileName).filter((file) => !durations.has(file));
  for (const file of lost) process.stderr.write(`${file} did not run\n`);
  if (files.length > 1) process.stdout.write(slowestFiles(durations, costs));
  isSuccess = hasPassed && missing.length === 0 && lost.length === 0;
} finally {
  await postgres?.stop();
}
process.exit(isSuccess ? 0 : 1);

async function runFiles(): Promise<RunResult & { costs: FileCost[] }> {
  // Each process inherits this environment.
  if (postgres !== undefined) process.env.TEST_DATABASE_URL = postgres.connectionString;
  process.env.NODE_ENV = 'test';
  process.env[tierVariable] = tier;
  // The runner of Node.js passes name patterns to the tests of a process, and so to the files of a worker.
  const shared = namePatterns === undefined ? shareFiles(files, concurrency, fileTimeoutMs) : undefined;
  const ending = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => ending.abort());
  const events = run({
    files: shared?.files ?? files,
    concurrency,
    signal: ending.signal,
    // Of a worker: it runs many files, each with its own limit.
    timeout: files.length * fileTimeoutMs,
    execArgv: [
      ...roomyHeap,
      `--test-timeout=${options['test-timeout']}`,
      `--import=${new URL('current_test.ts', import.meta.url).href}`,
    ],
    ...(namePatterns === undefined ? {} : { testNamePatterns: namePatterns }),
  });
  const collected = collectRan(events);
  events.compose(new spec()).pipe(process.stdout);
  try {
    return { ...(await collected), costs: shared?.costs() ?? [] };
  } finally {
    shared?.remove();
  }
}

/**
 * Strips the types of the sources and compiles them once. Otherwise each worker and each server process does so until one of
 * them ends: Node.js writes its cache at the end of a process.
 */
async function warmCompileCache(): Promise<void> {
  const modules = ['../servers/server.ts', '../servers/process.ts', '../../../src/commands/serve.ts'];
  const imports = modules.map((name) => `import ${JSON.stringify(new URL(name, import.meta.url).href)};`);
  const script = [
    `import { flushCompileCache } from 'node:module';`,
    ...imports,
    'flushCompileCache();',
    'process.exit();',
  ].join('\n');
  await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', script]);
}

/** A mistyped name needs no stack. */
function stopWithoutTests(error: Error): never {
  process.stderr.write(`${error.message}\n`);
  process.exit(2);
}
