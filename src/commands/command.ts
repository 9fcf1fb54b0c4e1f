/**
 * The interface of a command. The command line finds a command by name in commands.ts, parses its options and converts
 * errors to exit codes.
 */

import type { Config, Mode } from '../config/config.ts';

/** Option values as `parseArgs` returns them. */
export type OptionValues = Readonly<Record<string, string | boolean | (string | boolean)[] | undefined>>;

export interface CommandInput {
  values: OptionValues;
  /** Arguments after the command's name, one for each entry of `positionals`. */
  positionals: readonly string[];
}

export interface CommandContext {
  config: Config;
  /** Prints a line to standard output. */
  print: (line: string) => void;
  /** Prints a line to standard error. */
  printError: (line: string) => void;
}

/** An option as help shows it. One that names a value takes a string: `['--email E', 'e-mail address']`. */
export type Option = readonly [option: string, meaning: string, repeats?: 'repeatable'];

export interface Command {
  /** Options in display order, without `--help`, which every command has. */
  options?: readonly Option[];
  /** Names of the required arguments. */
  positionals?: readonly string[];
  /** How settings are validated. Default: `command`. */
  mode?: Mode;
  /** Whether it opens the database. Default: true. */
  usesDatabase?: boolean;
  /** Whether it has the option `--init`. Default: if it opens the database and is not a server. */
  mayCreateDatabase?: boolean;
  /** @returns the exit code; anything but a number is 0 */
  run: (input: CommandInput, context: CommandContext) => Promise<unknown>;
  /** Runs instead if the settings are invalid. Without it, the problems are printed. @returns the exit code */
  runWithout?: (
    problems: readonly string[],
    input: CommandInput,
    context: Pick<CommandContext, 'print'>,
  ) => number;
}

/** Invalid usage. Prints the message and refers to `--help`; exit code 2. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** The command failed for a reason that needs no stack. Exit code 1. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
}

/**
 * The value of a string option.
 * @throws UsageError if a required option is missing
 */
export function textOption(values: OptionValues, name: string, required: true): string;
export function textOption(values: OptionValues, name: string): string | undefined;
export function textOption(values: OptionValues, name: string, required = false): string | undefined {
  const value = values[name];
  if (typeof value === 'string' && value !== '') return value;
  if (required) throw new UsageError(`--${name} is required`);
  return undefined;
}

/** The values of a repeatable option. */
export function textOptions(values: OptionValues, name: string): string[] {
  const value = values[name];
  return Array.isArray(value) ? value.filter((entry) => typeof entry === 'string') : [];
}
