/**
 * The password of a user, for commands: asked for at the terminal without an echo, or read from standard input, where no
 * list of processes and no shell's history shows it; or as it stands on the command line, where both do.
 */

import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { CommandError, type OptionValues, textOption, UsageError } from './command.ts';

export const passwordHelp = [
  '--password P',
  'at least 8 characters; - reads it from standard input; without it the terminal is asked. P itself shows in ps',
] as const;

/** Where a password comes from. */
export interface PasswordInput extends NodeJS.ReadableStream {
  isTTY?: boolean;
}

/**
 * @param input a terminal, or what `-` is read from: its first line
 * @param output where a terminal is asked
 * @throws UsageError when there is none
 */
export async function readPassword(
  values: OptionValues,
  input: PasswordInput = process.stdin,
  output: NodeJS.WritableStream = process.stderr,
): Promise<string> {
  const given = textOption(values, 'password');
  if (given === undefined && input.isTTY === true) return askTwice(input, output);
  if (given === undefined) throw new UsageError('--password is required');
  if (given !== '-') return given;
  for await (const line of createInterface({ input })) return line;
  throw new UsageError('--password is -: standard input is empty');
}

async function askTwice(input: PasswordInput, output: NodeJS.WritableStream): Promise<string> {
  // As a terminal it echoes nothing by itself, and what is typed goes nowhere.
  const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
  const reader = createInterface({ input, output: nowhere, terminal: true });
  const lines = reader[Symbol.asyncIterator]();
  const ask = async (question: string): Promise<string> => {
    output.write(question);
    const { value, done } = await lines.next();
    output.write('\n');
    if (done === true) throw new CommandError('no password was given');
    return String(value);
  };
  // Ctrl-C ends the question like the end of the input.
  reader.once('SIGINT', () => reader.close());
  try {
    const password = await ask('Password: ');
    if ((await ask('The same again: ')) !== password) throw new CommandError('the two passwords differ');
    return password;
  } finally {
    reader.close();
  }
}
