/** The queue of test files that workers share (worker.ts). */

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { testFileName } from './test_files.ts';

export interface Queue {
  files: readonly string[];
  fileTimeoutMs: number;
}

/** What a file cost: without PostgreSQL, which all files share. */
export interface FileCost {
  file: string;
  processorMs: number;
}

/** The file of the queue's folder with a line for each test file that ran. */
export const costFile = 'costs.jsonl';

/** The environment variable with the folder of the queue. */
export const queueVariable = 'TEST_QUEUE';

export const workerFile = fileURLToPath(new URL('worker.ts', import.meta.url));

/** Files that need a process of their own, because they measure its memory, end it, or need statements that are prepared: a process has 500. */
const alone: readonly string[] = [
  'database/translated_errors.test.ts',
  'database/varied_statements.test.ts',
  'garbage_collection.test.ts',
  'webhooks/engine/memory.test.ts',
  'webhooks/engine/thread.test.ts',
  'webhooks/sending/hostile.test.ts',
];

/**
 * Divides files among workers.
 * @returns what the runner of Node.js starts as processes, and functions that read the costs and delete the queue
 */
export function shareFiles(files: readonly string[], workers: number, fileTimeoutMs: number) {
  const shared = files.filter((path) => !alone.includes(testFileName(path)));
  if (shared.length < 2) return { files: [...files], costs: () => [], remove: () => {} };
  const folder = mkdtempSync(join(tmpdir(), 'nuncio-test-queue-'));
  writeFileSync(join(folder, 'queue.json'), JSON.stringify({ files: shared, fileTimeoutMs } satisfies Queue));
  process.env[queueVariable] = folder;
  const count = Math.min(workers, shared.length);
  return {
    files: [...files.filter((path) => !shared.includes(path)), ...Array<string>(count).fill(workerFile)],
    costs: () => readCosts(join(folder, costFile)),
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}

function readCosts(path: string): FileCost[] {
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, 'utf8').trim().split('\n');
  return lines.map((line) => JSON.parse(line));
}
