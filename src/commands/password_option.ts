/** `--password`: as it is, or read from standard input, where no list of processes and no shell's history shows it. */

import { createInterface } from 'node:readline';
import { type OptionValues, textOption, UsageError } from './command.ts';

export const passwordHelp = [
  '--password P',
  'at least 8 characters; - reads it from standard input',
] as const;

/**
 * @param input where `-` is read from: its first line
 * @throws UsageError when there is none
 */
export async function readPassword(
  values: OptionValues,
  input: NodeJS.ReadableStream = process.stdin,
): Promise<string> {
  const given = textOption(values, 'password', true);
  if (given !== '-') return given;
  for await (const line of createInterface({ input })) return line;
  throw new UsageError('--password is -: standard input is empty');
}
