/** docs/conformance-webhooks.md says which tests hold which line: they must be there. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

const document = readFileSync(new URL('../docs/conformance-webhooks.md', import.meta.url), 'utf8');

interface Line {
  number: number;
  files: string[];
  difference: string;
}

const lines = document.split('\n').flatMap((text): Line[] => {
  const [, number = '', , tests = '', difference = ''] = text.split('|').map((cell) => cell.trim());
  if (!/^\d+$/.test(number)) return [];
  return [
    {
      number: Number(number),
      files: [...tests.matchAll(/`([^`]+)`/g)].map((match) => match[1] as string),
      difference,
    },
  ];
});

test('every line of the checklist is in the document', () => {
  assert.deepEqual(
    lines.map(({ number }) => number),
    Array.from({ length: 81 }, (_, index) => index + 1),
  );
});

test('each line has its tests in the files named, or a reason', () => {
  for (const { number, files, difference } of lines) {
    if (files.length === 0) assert.notEqual(difference, '', `line ${number} has neither a test nor a reason`);
    for (const file of files) {
      const source = readFileSync(new URL(file, import.meta.url), 'utf8');
      const names = [...source.matchAll(/webhooks ([\d, ]+):/g)].flatMap((match) =>
        (match[1] as string).split(', '),
      );
      assert.ok(names.includes(String(number)), `${file} has no test of line ${number}`);
    }
  }
});
