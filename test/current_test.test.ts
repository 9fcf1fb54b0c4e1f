/** The replacement for a part of Node's test runner (support/runner/current_test.ts). */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';

const program = `
  const { test } = await import('node:test');
  const { executionAsyncId } = await import('node:async_hooks');
  const { setTimeout: sleep } = await import('node:timers/promises');
  test('late', async () => {
    setTimeout(() => { throw new Error('too late'); }, 20);
    await sleep(200);
  });
  test('rejected', async () => {
    Promise.reject(new Error('nobody waits'));
    await sleep(200);
  });
  test('good', async (t) => {
    await t.test('inner', async () => { await sleep(10); });
    // Promises have ids of their own only while something watches them.
    await null;
    const first = executionAsyncId();
    await null;
    console.log('promises are watched:', executionAsyncId() !== first);
  });`;

function run(options: string[]): Promise<string> {
  const { NODE_TEST_CONTEXT: _context, ...environment } = process.env;
  return new Promise((resolve) => {
    const all = [...options, '--test-reporter=tap', '--input-type=module', '--eval', program];
    execFile(process.execPath, all, { env: environment }, (_error, stdout) => resolve(stdout));
  });
}

test('the runner blames late errors on the test that caused them, and watches no promise', async () => {
  const replaced = await run([`--import=${new URL('support/runner/current_test.ts', import.meta.url).href}`]);
  const results = (tap: string) =>
    [...tap.matchAll(/^ *(?:not )?ok \d+ - \w+/gm)].map(([line]) => line.trim());
  assert.deepEqual(results(replaced), [
    'not ok 1 - late',
    'not ok 2 - rejected',
    'ok 1 - inner',
    'ok 3 - good',
  ]);
  assert.match(replaced, /too late/);
  assert.match(replaced, /promises are watched: false/);
  // Node's own way has the same results. If it watches no promise either, current_test.ts can be deleted.
  const original = await run([]);
  assert.deepEqual(results(original), results(replaced));
  assert.match(original, /promises are watched: true/);
});
