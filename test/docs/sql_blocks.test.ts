/** PostgreSQL parses every SQL block of the documents that no other test runs, and `nuncio.publish` has the signature that they show. */

import assert from 'node:assert/strict';
import { glob } from 'node:fs/promises';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { createDatabase } from '../support/database/database.ts';
import { codeBlocks } from '../support/values/code_blocks.ts';

const database = await createDatabase();
const db = openDatabase({ connectionString: database.url, connectionsMax: 1 });
after(async () => {
  await db.destroy();
  await database.drop();
});

const documents = (await Array.fromAsync(glob('docs/**/*.md', { exclude: ['docs/evaluation/**'] }))).filter(
  (file) => !/existing-app|outbox|subscribers|decisions/.test(file),
);
const blocks = documents.flatMap(codeBlocks);

/** PL/pgSQL parses all statements of a block before it runs the first. Transactions cannot be part of it. */
async function parse(text: string): Promise<void> {
  const statements = text
    .replaceAll(/^(?:begin|commit|rollback);$/gm, '')
    .replace(/\bselect (?=nuncio\.)/g, 'perform ');
  await sql.raw(`do $block$ begin return; ${statements} end $block$`).execute(db);
}

for (const { file, line, text } of blocks.filter(({ language }) => language === 'sql')) {
  test(`${file}:${line} is SQL that PostgreSQL parses`, () => parse(text));
}

test('a block that is no SQL does not parse', async () => {
  await assert.rejects(parse('create rolle nuncio;'), { code: '42601' });
});

test('nuncio.publish has the signature of docs/publishing.md', async () => {
  const [block] = blocks.filter(({ file, language }) => file === 'docs/publishing.md' && language === 'text');
  const { rows } = await sql<{ signature: string }>`
    select format('nuncio.publish(%s) returns %s', pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)) as signature
    from pg_proc p where p.pronamespace = 'nuncio'::regnamespace and p.proname = 'publish'`.execute(db);
  const plain = (text = '') =>
    text
      .replaceAll('::text', '')
      .replaceAll(/default null/gi, 'default null')
      .trim();
  assert.ok(
    rows.some(({ signature }) => plain(signature) === plain(block?.text)),
    JSON.stringify([rows, block?.text]),
  );
});
