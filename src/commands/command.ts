/**
 * What a command is: its options and a function. The command line finds it by its name in the table of commands.ts,
 * reads its options and turns what it throws into an exit code.
 */

import type { ParseArgsOptionsConfig } from 'node:util';
import type { Config, Mode } from '../config/config.ts';

/** Options as `parseArgs` gives them. */
export type OptionValues = Readonly<Record<string, string | boolean | (string | boolean)[] | undefined>>;

export interface CommandInput {
  values: OptionValues;
  /** Words after the command's name, as many as `positionals` names. */
  positionals: readonly string[];
}

export interface CommandContext {
  config: Config;
  /** Prints a line for the person or program that asked. */
  print: (line: string) => void;
}

export interface Command {
  /** Options without `help`, which every command has. */
  options: ParseArgsOptionsConfig;
  /** What each option means, in the order in which they are shown: `['--email E', 'address to log in with']`. */
  help: readonly (readonly [option: string, meaning: string])[];
  /** Names of the words that must follow the command's name. */
  positionals?: readonly string[];
  /** How settings are read; `command` where absent. */
  mode?: Mode;
  run: (input: CommandInput, context: CommandContext) => Promise<void>;
}

/** The command was called wrongly: exit code 2, with the command's help. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** The command could not do what was asked, for a reason that needs no stack: exit code 1. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
}

/**
 * The value of an option that takes text.
 * @throws UsageError when it is required and absent
 */
export function textOption(values: OptionValues, name: string, required: true): string;
export function textOption(values: OptionValues, name: string): string | undefined;
export function textOption(values: OptionValues, name: string, required = false): string | undefined {
  const value = values[name];
  if (typeof value === 'string' && value !== '') return value;
  if (required) throw new UsageError(`--${name} is required`);
  return undefined;
}

/** The values of an option that may be given more than once. */
export function textOptions(values: OptionValues, name: string): string[] {
  const value = values[name];
  return Array.isArray(value) ? value.filter((entry) => typeof entry === 'string') : [];
}
