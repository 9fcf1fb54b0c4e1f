/**
 * Runs test files one after the other in one process, so that the sources are loaded once and not once for each file. Several
 * workers share a queue: a folder in which each file is claimed by the creation of a folder.
 *
 * A file becomes a test with the file's name, and the tests of the file are its subtests. `after` and `before` of the file belong to it,
 * so its servers stop before the next file begins.
 */

import { appendFileSync, mkdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { costFile, type FileCost, type Queue, queueVariable } from './queue.ts';

const folder = process.env[queueVariable] as string;
const { files, fileTimeoutMs } = JSON.parse(readFileSync(join(folder, 'queue.json'), 'utf8')) as Queue;

// A test may wait for timers that do not keep a process alive.
const alive = setInterval(() => {}, 60_000);
for (const [index, file] of files.entries()) {
  if (!claim(index)) continue;
  const before = processorMs();
  await test(file, { timeout: fileTimeoutMs }, () => import(pathToFileURL(resolve(file)).href));
  const cost: FileCost = { file, processorMs: processorMs() - before };
  appendFileSync(join(folder, costFile), `${JSON.stringify(cost)}\n`);
}
clearInterval(alive);
// What a test left open would keep this process alive.
setTimeout(() => {
  process.stderr.write(`a test left open: ${process.getActiveResourcesInfo().join(', ')}\n`);
  process.exit();
}, 30_000).unref();

/** @returns false if another worker has the file */
function claim(index: number): boolean {
  try {
    mkdirSync(join(folder, String(index)));
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

/** Processor time of this process with its threads and, on Linux, of the programs that it ran to their end. */
function processorMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1_000 + programsMs();
}

function programsMs(): number {
  if (process.platform !== 'linux') return 0;
  const fields = readFileSync('/proc/self/stat', 'utf8').split(') ').at(-1)?.split(' ') ?? [];
  // cutime and cstime (proc_pid_stat(5)), in hundredths of a second.
  return 10 * (Number(fields[13]) + Number(fields[14]));
}
