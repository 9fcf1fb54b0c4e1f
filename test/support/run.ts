/**
 * `npm test`: starts one embedded PostgreSQL for the whole run, runs tests under `node --test`, and stops PostgreSQL.
 * The parameters name rooms (`webhooks/lanes`) or files (`test/webhooks/lanes/hosts.test.ts`); without any, every test
 * runs. Parameters that begin with `-` go to `node --test`.
 */

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { missingFrom } from './checklist.ts';
import { createTemplate } from './database.ts';
import type { RanTest } from './ran_reporter.ts';
import { findTestFiles, testFileName } from './test_files.ts';

const flags = process.argv.slice(2).filter((parameter) => parameter.startsWith('-'));
const files = await findTestFiles(process.argv.slice(2).filter((parameter) => !parameter.startsWith('-')));
const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-test-'));
const postgres = await startEmbedded({ dataDir, role: 'server' });
let exitCode = 1;
try {
  await createTemplate(postgres.connectionString);
  exitCode = await runTests(postgres.connectionString);
} finally {
  await postgres.stop();
  rmSync(dataDir, { recursive: true, force: true });
}
process.exit(exitCode);

async function runTests(databaseUrl: string): Promise<number> {
  const report = join(dataDir, 'ran.jsonl');
  const child = spawn(
    process.execPath,
    ['--test', '--test-concurrency=2', '--test-timeout=600000', ...reporters(report), ...flags, ...files],
    {
      stdio: 'inherit',
      env: {
        ...process.env,
        TEST_DATABASE_URL: databaseUrl,
        NODE_ENV: 'test',
        // Hundreds of processes load the same sources.
        NODE_COMPILE_CACHE: fileURLToPath(new URL('../../node_modules/.cache/compiled', import.meta.url)),
      },
    },
  );
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal));
  const code = await new Promise<number>((resolve) => child.on('exit', (code) => resolve(code ?? 1)));
  // With flags of its own a run may leave tests out on purpose.
  return code !== 0 || flags.length > 0 ? code : checkChecklists(report, files);
}

/** What a run prints, and beside it what it ran. */
function reporters(report: string): string[] {
  const ran = fileURLToPath(new URL('ran_reporter.ts', import.meta.url));
  return [
    '--test-reporter=spec',
    '--test-reporter-destination=stdout',
    `--test-reporter=${ran}`,
    `--test-reporter-destination=${report}`,
  ];
}

/** Every line of the checklists that a file of this run holds must have been shown by a test that ran and passed. */
function checkChecklists(report: string, files: readonly string[]): number {
  const lines = readFileSync(report, 'utf8').split('\n').filter(Boolean);
  const ran = lines.map((line) => JSON.parse(line) as RanTest);
  const missing = missingFrom(
    ran,
    files.map((file) => testFileName(resolve(file))),
  );
  for (const text of missing) process.stderr.write(`checklist: ${text}\n`);
  return missing.length === 0 ? 0 : 1;
}
