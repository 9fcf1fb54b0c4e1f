/**
 * `npm test`: starts one embedded PostgreSQL for the whole run, runs the test files named (all by default) under
 * `node --test`, and takes everything down again.
 */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { createTemplate } from './database.ts';

const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-test-'));
const postgres = await startEmbedded({ dataDir, role: 'server' });
let exitCode = 1;
try {
  await createTemplate(postgres.connectionString);
  exitCode = await runTests(process.argv.slice(2), postgres.connectionString);
} finally {
  await postgres.stop();
  rmSync(dataDir, { recursive: true, force: true });
}
process.exit(exitCode);

async function runTests(parameters: string[], databaseUrl: string): Promise<number> {
  const isFile = (parameter: string) => parameter.endsWith('.ts');
  const files = parameters.filter(isFile);
  const flags = parameters.filter((parameter) => !isFile(parameter));
  if (files.length === 0) files.push(...(await Array.fromAsync(glob('test/**/*.test.ts'))).sort());
  const child = spawn(
    process.execPath,
    ['--test', '--test-concurrency=2', '--test-timeout=600000', ...flags, ...files],
    { stdio: 'inherit', env: { ...process.env, TEST_DATABASE_URL: databaseUrl, NODE_ENV: 'test' } },
  );
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal));
  return new Promise((resolve) => child.on('exit', (code) => resolve(code ?? 1)));
}
