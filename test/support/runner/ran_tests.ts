/** The results of a test run: each test with its outcome, and the duration of each file. */

import type { TestEvent } from 'node:test/reporters';
import { testFileName } from './test_files.ts';

export interface RanTest {
  /** The file's path below `test/`. */
  file: string;
  name: string;
  /** Whether the test ran to completion and passed. */
  hasPassed: boolean;
  durationMs: number;
}

/** Collects the tests of a run until the run ends. */
export async function collectRan(
  events: AsyncIterable<TestEvent>,
): Promise<{ ran: RanTest[]; hasPassed: boolean }> {
  const ran: RanTest[] = [];
  let hasPassed = true;
  for await (const { type, data } of events) {
    if (type === 'test:summary' && data.file === undefined) hasPassed = data.success;
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    const isLeftOut = Boolean(data.skip) || Boolean(data.todo);
    ran.push({
      file: testFileName(data.file ?? ''),
      name: data.name,
      hasPassed: type === 'test:pass' && !isLeftOut,
      durationMs: data.details.duration_ms,
    });
  }
  return { ran, hasPassed };
}

const slowestCount = 10;

/** Describes the files whose tests took longest. */
export function slowestFiles(ran: readonly RanTest[]): string {
  const times = new Map<string, number>();
  for (const { file, durationMs } of ran) times.set(file, (times.get(file) ?? 0) + durationMs);
  const slowest = [...times].sort(([, one], [, other]) => other - one).slice(0, slowestCount);
  const lines = slowest.map(([file, ms]) => `${(ms / 1_000).toFixed(1).padStart(7)} s  ${file}`);
  return `slowest files:\n${lines.join('\n')}\n`;
}
