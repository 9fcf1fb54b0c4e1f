/** The results of a test run: each test with its outcome, and the duration of each file. */

import type { TestEvent } from 'node:test/reporters';
import { type FileCost, workerFile } from './queue.ts';
import { testFileName } from './test_files.ts';

export interface RanTest {
  /** The file's path below `test/`. */
  file: string;
  name: string;
  /** Whether the test ran to completion and passed. */
  hasPassed: boolean;
  durationMs: number;
}

export interface RunResult {
  ran: RanTest[];
  /** The milliseconds that each file took, by its path below `test/`. */
  durations: ReadonlyMap<string, number>;
  hasPassed: boolean;
}

/** Collects the tests of a run until the run ends. */
export async function collectRan(events: AsyncIterable<TestEvent>): Promise<RunResult> {
  const ran: RanTest[] = [];
  const durations = new Map<string, number>();
  let hasPassed = true;
  for await (const { type, data } of events) {
    if (type === 'test:summary' && data.file === undefined) hasPassed = data.success;
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    const { duration_ms: durationMs } = data.details;
    // A file of a worker is itself a test.
    if (data.file === workerFile) {
      durations.set(testFileName(data.name), durationMs);
      continue;
    }
    const file = testFileName(data.file ?? '');
    const isLeftOut = Boolean(data.skip) || Boolean(data.todo);
    ran.push({ file, name: data.name, hasPassed: type === 'test:pass' && !isLeftOut, durationMs });
    // Of a file in a process of its own.
    if (data.nesting === 0) durations.set(file, (durations.get(file) ?? 0) + durationMs);
  }
  return { ran, durations, hasPassed };
}

const slowestCount = 20;

/** Describes the files that took longest, with the processor time of those that ran in a shared process. */
export function slowestFiles(durations: ReadonlyMap<string, number>, costs: readonly FileCost[]): string {
  const slowest = [...durations].sort(([, one], [, other]) => other - one).slice(0, slowestCount);
  const seconds = (ms: number | undefined) => (ms === undefined ? '' : (ms / 1_000).toFixed(1)).padStart(9);
  const lines = slowest.map(([file, ms]) => {
    const cost = costs.find((each) => testFileName(each.file) === file);
    return `${seconds(ms)} ${seconds(cost?.processorMs)}  ${file}`;
  });
  const total = costs.reduce((sum, { processorMs }) => sum + processorMs, 0);
  return `slowest files: seconds, of the processor\n${lines.join('\n')}\n${seconds(undefined)} ${seconds(total)}  all files in shared processes\n`;
}
