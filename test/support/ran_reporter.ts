/** A reporter of `node --test` that writes one JSON line for each test that ended, for the check of the checklists. */

import type { TestEvent } from 'node:test/reporters';
import { testFileName } from './test_files.ts';

export interface RanTest {
  /** Its path below `test/`. */
  file: string;
  name: string;
  /** Whether it ran to its end and passed. */
  hasPassed: boolean;
}

export default async function* ranTests(source: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  for await (const { type, data } of source) {
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    const isLeftOut = Boolean(data.skip) || Boolean(data.todo);
    const ran: RanTest = {
      file: testFileName(data.file ?? ''),
      name: data.name,
      hasPassed: type === 'test:pass' && !isLeftOut,
    };
    yield `${JSON.stringify(ran)}\n`;
  }
}
