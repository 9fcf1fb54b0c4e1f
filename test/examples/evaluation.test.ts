/**
 * docs/evaluation: each solution passes its check, on what `npm pack` would publish, and an empty one does not.
 *
 * `npm run evaluate` runs the check of one scenario with a solution from elsewhere.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { runCheck } from '../../docs/evaluation/check.ts';
import { pack } from '../support/programs/installed_package.ts';
import { startTestServer } from '../support/servers/server.ts';

const run = promisify(execFile);
const scenarios = fileURLToPath(new URL('../../docs/evaluation/', import.meta.url));
const checkout = fileURLToPath(new URL('../../node_modules/', import.meta.url));
const { EVALUATION_SCENARIO: wanted, EVALUATION_FOLDER: given } = process.env;

const packed = await mkdtemp(join(tmpdir(), 'nuncio-evaluation-'));
after(() => rm(packed, { recursive: true, force: true }));
const modules = join(packed, 'node_modules');
await mkdir(modules);
for (const name of await readdir(checkout)) await symlink(join(checkout, name), join(modules, name));
await run('tar', ['-xzf', await pack(packed), '-C', packed]);
await rename(join(packed, 'package'), join(modules, 'nuncio'));

/** Copies a solution, so that the check leaves nothing in it. */
async function prepare(t: TestContext, solution: string | null): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-solution-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  if (solution !== null) {
    const filter = (source: string) => !source.includes('node_modules');
    await cp(solution, folder, { recursive: true, filter });
  }
  await symlink(modules, join(folder, 'node_modules'));
  // JavaScript of the solution is a module, unless the solution says otherwise.
  await writeFile(join(folder, 'package.json'), '{"type":"module"}', { flag: 'wx' }).catch(() => {});
  return folder;
}

async function checkSolution(t: TestContext, scenario: string, solution: string | null): Promise<void> {
  const folder = await prepare(t, solution);
  await runCheck(scenario, { server: await startTestServer(t), folder, after: (hook) => t.after(hook) });
}

if (wanted !== undefined && given !== undefined) {
  test(`the solution passes ${wanted}`, (t) => checkSolution(t, wanted, given));
} else {
  const entries = await readdir(scenarios, { withFileTypes: true });
  for (const { name } of entries.filter((entry) => entry.isDirectory())) {
    test(`the solution of ${name} passes its check, and an empty one does not`, async (t) => {
      await t.test('the solution', (inner) => checkSolution(inner, name, join(scenarios, name, 'solution')));
      await t.test('nothing', (inner) => assert.rejects(checkSolution(inner, name, null)));
    });
  }
}
