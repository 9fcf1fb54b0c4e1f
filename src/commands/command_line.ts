/**
 * The command line: finds the command, parses its options and runs it. Exit codes: 0 success, 1 failure, 2 usage error.
 * `nuncio doctor` has its own: 0 no problem, 1 warnings, 2 errors.
 */

import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';
import { type Config, ConfigError, loadConfig } from '../config/config.ts';
import { readEnvironment, unknownSettings } from '../config/environment.ts';
import { nearestName } from '../shared/nearest.ts';
import { version } from '../version.ts';
import { type Command, type CommandInput, type Option, UsageError } from './command.ts';
import { type CommandEntry, commands } from './commands.ts';
import { explainFailure } from './failure.ts';

const exitFailed = 1;
const exitUsage = 2;

/** Where a command runs. */
export interface Shell {
  environment: Readonly<Record<string, string | undefined>>;
  /** The current directory. */
  folder: string;
  /** Prints a line to standard output. */
  print: (line: string) => void;
  /** Prints a line to standard error. */
  printError: (line: string) => void;
}

/**
 * Runs a command until it ends.
 * @param words the command line without the program
 * @returns the exit code
 */
export async function runCommandLine(words: readonly string[], shell: Shell): Promise<number> {
  const { print, printError } = shell;
  const [first] = words;
  if (first === '--version') {
    print(version);
    return 0;
  }
  if (first === undefined || first === '--help' || first === '-h' || first === 'help') {
    print(overview());
    return first === undefined ? exitUsage : 0;
  }
  const entry = findCommand(words);
  if (entry === undefined) return reportUnknown(words, shell);
  const command = await entry.load();
  try {
    const { values, positionals } = parse(command, words.slice(entry.name.split(' ').length));
    if (values.help === true) {
      print(help(entry, command));
      return 0;
    }
    requireCount(command.positionals ?? [], positionals);
    return await run(command, { values, positionals }, shell);
  } catch (error) {
    if (!(error instanceof UsageError)) return report(error, shell);
    printError(`nuncio ${entry.name}: ${error.message}`);
    printError(`see nuncio ${entry.name} --help`);
    return exitUsage;
  }
}

function findCommand(words: readonly string[]): CommandEntry | undefined {
  return commands.find((entry) => {
    const name = entry.name.split(' ');
    return name.every((word, index) => words[index] === word);
  });
}

function requireCount(wanted: readonly string[], given: readonly string[]): void {
  if (given.length < wanted.length) throw new UsageError(`${wanted[given.length]} is missing`);
  if (given.length > wanted.length) throw new UsageError(`unexpected argument "${given[wanted.length]}"`);
}

async function run(command: Command, input: CommandInput, shell: Shell): Promise<number> {
  const { environment, folder, print, printError } = shell;
  let config: Config | undefined;
  try {
    const unknown = unknownSettings(environment);
    config = loadConfig(readEnvironment(environment), command.mode ?? 'command', unknown, folder);
    if (input.values.init === true) config = Object.freeze({ ...config, mayCreateDatabase: true });
    const code = await command.run(input, { config, print, printError });
    return typeof code === 'number' ? code : 0;
  } catch (error) {
    if (error instanceof UsageError) throw error;
    if (error instanceof ConfigError && config === undefined && command.runWithout !== undefined)
      return command.runWithout(error.problems, input, { print });
    return report(error, shell, config);
  }
}

function parse(command: Command, words: readonly string[]) {
  try {
    return parseArgs({
      args: [...words],
      options: { ...parserOptions(commandOptions(command)), help: { type: 'boolean', short: 'h' } },
      allowPositionals: true,
      strict: true,
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function parserOptions(options: readonly Option[]): ParseArgsOptionsConfig {
  const entries = options.map(([option, _meaning, repeats]) => {
    const [name = '', value] = option.slice(2).split(' ');
    const type = value === undefined ? 'boolean' : 'string';
    return [name, { type, multiple: repeats !== undefined }] as const;
  });
  return Object.fromEntries(entries);
}

/**
 * The options of a command in display order, without `--help`, with that of every command that is not a server: only servers create
 * what is missing unasked.
 */
export function commandOptions({
  mode,
  usesDatabase = true,
  mayCreateDatabase,
  options = [],
}: Command): readonly Option[] {
  const isServer = mode === 'dev' || mode === 'start';
  return !(mayCreateDatabase ?? (usesDatabase && !isServer))
    ? options
    : [...options, ['--init', 'create the database if there is none']];
}

/** Reports an unknown command. The first word of a group of commands lists the group. */
function reportUnknown(words: readonly string[], { print, printError }: Shell): number {
  const text = words
    .slice(0, words.findIndex((word) => word.startsWith('-')) >>> 0)
    .slice(0, 2)
    .join(' ');
  const group = commands.filter(({ name }) => name.startsWith(`${text} `));
  if (group.length > 0) {
    const wantsHelp = words.some((word) => word === '--help' || word === '-h');
    const lines = ['usage: nuncio <command> [options]', '', ...rowsOf(group)].join('\n');
    if (wantsHelp) {
      print(lines);
      return 0;
    }
    printError(lines);
    printError(`\nnuncio: "${text}" is incomplete`);
    return exitUsage;
  }
  const near = nearestName(
    text,
    commands.map(({ name }) => name),
  );
  printError(`nuncio: unknown command "${text}"${near === undefined ? '' : `; did you mean "${near}"?`}`);
  printError('see nuncio --help');
  return exitUsage;
}

/** Reports what the operator can mend in one line each, with the stack at LOG_LEVEL=debug, and defects with their stack. */
function report(error: unknown, { printError }: Shell, config?: Config): number {
  const lines = explainFailure(error, config);
  for (const line of lines ?? []) printError(`nuncio: ${line}`);
  const isVerbose = config?.logLevel === 'debug' || config?.logLevel === 'trace';
  if (lines === undefined || isVerbose)
    printError(error instanceof Error ? (error.stack ?? error.message) : String(error));
  return exitFailed;
}

function overview(): string {
  return [
    'usage: nuncio <command> [options]',
    '',
    ...rowsOf(commands),
    '',
    'Every command takes --help. Settings are environment variables: see docs/settings.md.',
  ].join('\n');
}

function rowsOf(entries: readonly CommandEntry[]): string[] {
  const width = Math.max(...entries.map(({ name }) => name.length));
  return entries.map(({ name, summary }) => `  ${name.padEnd(width)}  ${summary}`);
}

function help({ name, summary }: CommandEntry, command: Command): string {
  const words = [name, ...(command.positionals ?? [])].join(' ');
  const rows: readonly Option[] = [...commandOptions(command), ['--help', 'show this help']];
  const width = Math.max(...rows.map(([option]) => option.length));
  return [
    `usage: nuncio ${words} [options]`,
    '',
    summary,
    '',
    ...rows.map(([option, meaning]) => `  ${option.padEnd(width)}  ${meaning}`),
  ].join('\n');
}
