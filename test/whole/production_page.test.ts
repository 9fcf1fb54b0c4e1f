/** The blocks of docs/production.md and the scripts of deploy/walk are the same: a reader of the page runs what the test of the walk runs. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';

const checkout = join(import.meta.dirname, '../..');
const folder = join(checkout, 'deploy/walk');
const page = await readFile(join(checkout, 'docs/production.md'), 'utf8');

/** The code of a script below its header: comments, `set`, and the variables of every script. */
function bodyOf(script: string): string {
  const lines = script.split('\n');
  const first = lines.indexOf('');
  return lines.slice(first + 1).join('\n');
}

test('each script of the walk is a block of the page, in the order of its number', async () => {
  const scripts = (await readdir(folder)).sort();
  const steps = scripts.filter((name) => /^\d\d-/.test(name));
  assert.ok(steps.length >= 10, `${steps.length} steps`);
  const blocks = [...page.matchAll(/^```sh\n# deploy\/walk\/([\w.-]+)\n([\s\S]*?)^```$/gm)];
  const named = blocks.map(([, name]) => name as string);
  assert.deepEqual([...named].sort(), scripts);
  assert.deepEqual(
    named.filter((name) => steps.includes(name)),
    steps,
  );
  for (const [, name = '', block] of blocks) {
    const script = await readFile(join(folder, name), 'utf8');
    assert.equal(block, name === 'settings.sh' ? script : bodyOf(script), name);
  }
});

test('each script is valid sh', async () => {
  for (const name of await readdir(folder)) {
    await promisify(execFile)('sh', ['-n', join(folder, name)]);
  }
});
