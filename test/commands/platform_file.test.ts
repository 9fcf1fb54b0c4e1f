/** Which platform a command runs: the operator's, and the example only in development. */

import assert from 'node:assert/strict';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { runCommand, runCommandProcess, startProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort, testSecret } from '../support/servers/server.ts';

const missing =
  /^nuncio: NUNCIO_CONFIG is not set: [^\n]+\/nuncio\.config\.ts \(nor nuncio\.config\.mts, nuncio\.config\.js, nuncio\.config\.mjs beside it\)\n$/;

test('start refuses to run the example, names the files that it looked for, and creates nothing', async (t) => {
  const folder = await temporaryFolder(t);
  const failed = await runCommandProcess(['start'], { PORT: String(await freePort()) }, folder);
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, missing);
  assert.deepEqual(await readdir(folder), []);
  const lost = await runCommand(['start'], { NUNCIO_CONFIG: 'lost.ts' }, folder);
  assert.deepEqual(
    [lost.code, lost.stderr],
    [1, `nuncio: ${join(folder, 'lost.ts')}: cannot be loaded: there is no such file\n`],
  );
});

test('no command creates the example’s tables in a database of production', async (t) => {
  const folder = await temporaryFolder(t);
  const database = await createForeignDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 1 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const settings = { DATABASE_URL: database.url, NUNCIO_SECRET: testSecret.toString() };
  for (const words of [
    ['start'],
    ['start', '--no-migrate'],
    ['dev'],
    ['migrate'],
    ['migrate', '--init'],
    ['trigger', 'push', '--init'],
    ['rejected', 'retry', '--init'],
    ['client', 'create', '--name', 'X', '--redirect-uri', 'https://app.example.com/cb', '--init'],
  ]) {
    const failed = await runCommand(words, settings, folder);
    assert.equal(failed.code, 1, words.join(' '));
    assert.match(failed.stderr, missing, words.join(' '));
  }
  const { rows } = await sql`select from pg_namespace where nspname = 'nuncio'`.execute(db);
  assert.equal(rows.length, 0);
});

test('dev runs the example and says so, and so do the commands beside it', async (t) => {
  const folder = await temporaryFolder(t);
  const settings = { PORT: String(await freePort()) };
  const server = startProcess(t, ['dev'], settings, [], undefined, folder);
  await server.ready();
  const published = await runCommand(['trigger', 'push'], {}, folder);
  assert.deepEqual([published.code, published.stderr], [0, '']);
  assert.match(server.output(), /Platform +the example, because there is no nuncio\.config\.ts in /);
  assert.equal(await server.end('SIGTERM'), 0);
  const failed = await runCommand(['trigger', 'push'], {}, folder);
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, missing);
});

test('a configuration of any package type loads, and a mistake in it is one line with its place', async (t) => {
  const folder = await temporaryFolder(t);
  const declaration = `import { kinds } from "./kinds.ts";
    interface Name { name: string }
    const brand: Name = { name: 'Acme' };
    export default { brand, eventKinds: kinds };`;
  await writeFile(join(folder, 'kinds.ts'), 'export const kinds: object[] = [];');
  await writeFile(join(folder, 'broken.ts'), 'export default {\n  brand: 1\n  eventKinds: [],\n};\n');
  await writeFile(join(folder, 'undefined.ts'), 'const a: number = 1;\nexport default { a, b };\n');
  const run = (file: string, word: string) => runCommandProcess([word], { NUNCIO_CONFIG: file }, folder);
  for (const type of ['{"type":"commonjs"}', '{"type":"module"}', '{}']) {
    await writeFile(join(folder, 'package.json'), type);
    await writeFile(join(folder, 'own.ts'), declaration);
    const { stderr } = await run('own.ts', 'migrate');
    // The platform has loaded: what is missing is the database.
    assert.match(stderr, /^nuncio: there is no database in [^\n]+\n$/, type);
    const broken = await run('broken.ts', 'start');
    assert.equal(broken.code, 1);
    assert.match(
      broken.stderr,
      /^nuncio: [^\n]+broken\.ts: cannot be loaded: Expected [^\n]+broken\.ts:3\)\n$/,
    );
    const undeclared = await run('undefined.ts', 'dev');
    assert.equal(undeclared.code, 1);
    assert.match(undeclared.stderr, /^nuncio: [^\n]+: b is not defined \([^\n]+undefined\.ts:2\)\n$/);
  }
});
