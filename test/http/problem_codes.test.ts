/** Codes of errors: each code is used, and with the statuses that it names. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { test } from 'node:test';
import { problemCodes } from '../../src/http/problem_codes.ts';

const sources = await Array.fromAsync(glob('src/**/*.ts'));
const texts = sources
  .filter((path) => !path.startsWith('src/console') && !path.endsWith('problem_codes.ts'))
  .map((path) => readFileSync(path, 'utf8'));

test('the codes of errors are in alphabetical order', () => {
  const names = Object.keys(problemCodes);
  assert.deepEqual(
    names,
    names.toSorted((one, other) => (one < other ? -1 : 1)),
  );
});

test('each code of an error is used', () => {
  const used = new Set(
    texts.flatMap((text) => [...text.matchAll(/['`]([a-z][a-z_-]+)['`]/g)].map(([, name]) => name)),
  );
  const names = Object.keys(problemCodes).filter((code) => !code.startsWith('quota-'));
  // The guard and the quotas convert names with underscores.
  const unused = names.filter(
    (code) => !used.has(code) && !texts.some((text) => text.includes(code.replaceAll('-', '_'))),
  );
  assert.deepEqual(unused, []);
});

test('responses have a status that their code names', () => {
  const wrong: string[] = [];
  let count = 0;
  for (const text of texts) {
    for (const thrown of text.split('new Problem(').slice(1)) {
      const [, status, code] = /^\s*(\d{3}),[^;]*?\bcode: '([a-z-]+)'/.exec(thrown.slice(0, 400)) ?? [];
      if (code === undefined) continue;
      count += 1;
      const { statuses } = problemCodes[code as keyof typeof problemCodes];
      if (!statuses.includes(Number(status))) wrong.push(`${code}: ${status}`);
    }
  }
  assert.deepEqual(wrong, []);
  assert.ok(count > 50, `${count} were found`);
});
