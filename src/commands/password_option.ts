/**
 * The password of a user for commands. The terminal (without echo) and standard input keep it out of the process list and the
 * shell history. The command line does not.
 */

import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { CommandError, type OptionValues, textOption, UsageError } from './command.ts';

export const passwordHelp = [
  '--password P',
  'at least 8 characters; - reads standard input; without the option the terminal prompts. A password P is visible in ps',
] as const;

/** The source of the password. */
export interface PasswordInput extends NodeJS.ReadableStream {
  isTTY?: boolean;
}

/**
 * @param input a terminal, or the stream whose first line `-` reads
 * @param output where the terminal prompts
 * @throws UsageError if there is no password
 */
export async function readPassword(
  values: OptionValues,
  input: PasswordInput = process.stdin,
  output: NodeJS.WritableStream = process.stderr,
): Promise<string> {
  const given = textOption(values, 'password');
  if (given === undefined && input.isTTY === true) return askTwice(input, output);
  if (given === undefined) {
    throw new UsageError('--password is required without a terminal; --password - reads standard input');
  }
  if (given !== '-') return given;
  for await (const line of createInterface({ input })) return line;
  throw new UsageError('--password is -, but standard input is empty');
}

async function askTwice(input: PasswordInput, output: NodeJS.WritableStream): Promise<string> {
  // In terminal mode the stream does not echo by itself, and readline's output is discarded.
  const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
  const reader = createInterface({ input, output: nowhere, terminal: true });
  const lines = reader[Symbol.asyncIterator]();
  const ask = async (prompt: string): Promise<string> => {
    output.write(prompt);
    const { value, done } = await lines.next();
    output.write('\n');
    if (done === true) throw new CommandError('no password was entered');
    return String(value);
  };
  // Ctrl-C counts as end of input.
  reader.once('SIGINT', () => reader.close());
  try {
    const password = await ask('Password: ');
    if ((await ask('Repeat password: ')) !== password) throw new CommandError('the passwords do not match');
    return password;
  } finally {
    reader.close();
  }
}
