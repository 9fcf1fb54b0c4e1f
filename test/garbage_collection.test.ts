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

test('V8 accepts the settings of this machine, and collects on request', () => {
  const script = `
    const { shortenCollectionPauses, collectStartupGarbage } = await import('${file}');
    shortenCollectionPauses();
    collectStartupGarbage();`;
  assert.equal(complaintsOf(script), '');
});

test('more than two processors keep V8’s own number of collecting threads', () => {
  assert.equal(pauseFlags(2).length, pauseFlags(1).length);
  assert.equal(pauseFlags(3).length, 1);
});
