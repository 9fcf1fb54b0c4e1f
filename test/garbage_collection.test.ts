/** Settings of V8's garbage collector. V8's flags are not a stable interface, so these tests show when one disappears. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { pauseFlags } from '../src/garbage_collection.ts';

const file = new URL('../src/garbage_collection.ts', import.meta.url).href;

/** @returns what V8 says about flags that it does not know */
function complaintsOf(script: string): string {
  const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', script], {
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
  return stderr;
}

for (const processors of [1, 2, 3, 64]) {
  test(`V8 knows every flag that is set on ${processors} processors`, () => {
    const setting = (flags: string[]) =>
      `import { setFlagsFromString } from 'node:v8'; ${flags.map((flag) => `setFlagsFromString('${flag}');`).join(' ')}`;
    assert.match(complaintsOf(setting(['--no-such-flag'])), /unrecognized flag/);
    assert.equal(complaintsOf(setting(pauseFlags(processors))), '');
  });
}

test('V8 accepts the settings of this machine', () => {
  const script = `
    const { shortenCollectionPauses } = await import('${file}');
    shortenCollectionPauses();`;
  assert.equal(complaintsOf(script), '');
});

test('a thread that rests returns what it no longer uses, once', () => {
  const script = `
    import { setTimeout as sleep } from 'node:timers/promises';
    import { getHeapStatistics } from 'node:v8';
    const { collectAtRest } = await import('${file}');
    const occupied = () => getHeapStatistics().total_physical_size;
    let garbage = Array.from({ length: 1_000_000 }, (_each, index) => ({ index }));
    const before = occupied();
    garbage = undefined;
    let [released, work, isBusy] = [0, 0, true];
    const workDone = () => isBusy ? (work += 11) : work;
    const stop = collectAtRest({ workDone, beforeCollection: () => { released += 1; }, pauseMs: 50 });
    await sleep(500);
    if (released !== 0) throw new Error('collected while there was work');
    isBusy = false;
    while (occupied() > before / 2) await sleep(50);
    await sleep(300);
    stop();
    if (released !== 1) throw new Error(\`collected \${released} times\`);`;
  assert.equal(complaintsOf(script), '');
});

test('more than two processors keep V8’s own number of collecting threads', () => {
  assert.equal(pauseFlags(2).length, pauseFlags(1).length);
  assert.equal(pauseFlags(3).length, 1);
});
