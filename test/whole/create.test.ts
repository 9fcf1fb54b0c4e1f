/** `npm create nuncio`: the packed program makes a project whose types hold and whose test passes with the packed server. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { cleanEnvironment, npm, pack } from '../support/programs/installed_package.ts';

const run = promisify(execFile);
const checkout = join(import.meta.dirname, '..', '..');
const folder = await mkdtemp(join(tmpdir(), 'nuncio-create-'));
after(() => rm(folder, { recursive: true, force: true }));
const program = join(folder, (await npm(['pack', '--silent', join(checkout, 'create')], folder)).trim());

/** Runs the packed program in the folder, as `npm create nuncio` does. */
async function create(...words: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const line = ['exec', '--yes', '--silent', `--package=${program}`, '--', 'create-nuncio', ...words];
  try {
    return { code: 0, ...(await run('npm', line, { cwd: folder, env: cleanEnvironment() })) };
  } catch (error) {
    return error as { code: number; stdout: string; stderr: string };
  }
}

test('the project’s types hold, and its test passes with a server of its own', async () => {
  const archive = await pack(folder);
  const { code, stdout, stderr } = await create('My Platform', '--nuncio', relative(folder, archive));
  assert.deepEqual([code, stderr], [0, '']);
  assert.match(stdout, /cd My Platform\n {2}npm install\n {2}npm run dev/);
  const project = join(folder, 'My Platform');
  const { name, dependencies } = JSON.parse(await readFile(join(project, 'package.json'), 'utf8'));
  assert.deepEqual([name, dependencies.nuncio], ['my-platform', archive]);
  assert.match(await readFile(join(project, '.gitignore'), 'utf8'), /^data$/m);
  await npm(['install'], project);
  const options = { cwd: project, env: cleanEnvironment() };
  await run('npm', ['run', '--silent', 'check'], options);
  const tests = await run('npm', ['test', '--silent', '--', '--test-reporter=spec'], options);
  assert.match(tests.stdout, /pass 2\n/);
});

test('it writes only into new and empty folders', async () => {
  const used = join(folder, 'used');
  await mkdir(used);
  await writeFile(join(used, 'notes.txt'), 'mine');
  const refused = await create('used');
  assert.deepEqual([refused.code, refused.stdout], [1, '']);
  assert.match(refused.stderr, /^create-nuncio: .+used is not empty: it has notes\.txt\n$/);
  assert.deepEqual(await readdir(used), ['notes.txt']);
  const repository = join(folder, 'repository');
  await mkdir(join(repository, '.git'), { recursive: true });
  assert.equal((await create('repository')).code, 0);
  assert.ok((await readdir(repository)).includes('nuncio.config.ts'));
});

test('it explains wrong options, and depends on its own version of the server', async () => {
  for (const words of [[], ['a', 'b'], ['a', '--template', 'x']]) {
    const { code, stderr } = await create(...words);
    assert.equal(code, 2, words.join(' '));
    assert.match(stderr, /^create-nuncio: /);
  }
  assert.match((await create('--help')).stdout, /^usage: npm create nuncio <folder>\n/);
  assert.equal((await create('other')).code, 0);
  const read = async (path: string) => JSON.parse(await readFile(path, 'utf8'));
  const { version } = await read(join(checkout, 'package.json'));
  assert.equal((await read(join(checkout, 'create', 'package.json'))).version, version);
  assert.equal((await read(join(folder, 'other', 'package.json'))).dependencies.nuncio, `^${version}`);
});
