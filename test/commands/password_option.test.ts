/** Sources of a command's password. */

import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { readPassword } from '../../src/commands/password_option.ts';

function terminal(typed: string) {
  const input = Object.assign(new PassThrough(), { isTTY: true, setRawMode: () => {} });
  const output = new PassThrough();
  let text = '';
  output.setEncoding('utf8').on('data', (piece: string) => {
    text += piece;
  });
  input.end(typed);
  return { input, output, shown: () => text };
}

test('a terminal is asked twice and echoes nothing', async () => {
  const { input, output, shown } = terminal('correct horse\rcorrect horse\r');
  assert.equal(await readPassword({}, input, output), 'correct horse');
  assert.equal(shown(), 'Password: \nRepeat password: \n');
});

test('two different passwords, an end of input and an interrupt are refused', async () => {
  for (const [typed, reason] of [
    ['one password\ranother one\r', /do not match/],
    ['', /no password was entered/],
    ['half\u0003', /no password was entered/],
  ] as const) {
    const { input, output } = terminal(typed);
    await assert.rejects(readPassword({}, input, output), reason);
  }
});

test('- reads the first line of standard input, and the option is required without a terminal', async () => {
  const input = new PassThrough();
  input.end('from a file\nanother line\n');
  assert.equal(await readPassword({ password: '-' }, input), 'from a file');
  await assert.rejects(readPassword({ password: '-' }, new PassThrough().end()), /standard input is empty/);
  await assert.rejects(
    readPassword({}, new PassThrough()),
    /--password is required without a terminal; --password - reads standard input/,
  );
  assert.equal(await readPassword({ password: 'as it is' }, new PassThrough()), 'as it is');
});
