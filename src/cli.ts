/**
 * The command line: finds the command, parses its options and runs it. Exit codes: 0 success, 1 failure, 2 usage error.
 */

import { parseArgs } from 'node:util';
import { type Command, UsageError } from './commands/command.ts';
import { type CommandEntry, commands } from './commands/commands.ts';
import { loadConfig } from './config/config.ts';
import { enableSourceCache, readEnvironment, unknownSettingsOfProcess } from './config/environment.ts';
import { nearestName } from './config/nearest.ts';
import { isDatabaseUnavailable } from './database/database.ts';
import { version } from './version.ts';

const exitFailed = 1;
const exitUsage = 2;

/** Errors whose message is sufficient for an operator. Other errors are printed with their stack. */
const plainErrors = new Set([
  'ConfigError',
  'EmbeddedError',
  'PlatformError',
  'CollectionsError',
  'CommandError',
  'SchemaError',
  'NodeNameError',
  'AccountError',
  'ClientError',
]);

enableSourceCache();
process.exitCode = await main(process.argv.slice(2));

async function main(words: string[]): Promise<number> {
  const [first] = words;
  if (first === '--version') return print(version);
  if (first === undefined || first === '--help' || first === '-h' || first === 'help') {
    print(overview());
    return first === undefined ? exitUsage : 0;
  }
  const entry = findCommand(words);
  if (entry === undefined) {
    return reportUnknown(words);
  }
  const command = await entry.load();
  try {
    return await run(entry, command, words.slice(entry.name.split(' ').length));
  } catch (error) {
    return report(error, entry, command);
  }
}

function findCommand(words: string[]): CommandEntry | undefined {
  return commands.find((entry) => {
    const name = entry.name.split(' ');
    return name.every((word, index) => words[index] === word);
  });
}

async function run(entry: CommandEntry, command: Command, words: string[]): Promise<number> {
  const { values, positionals } = parse(command, words);
  if (values.help === true) return print(help(entry, command));
  const wanted = command.positionals ?? [];
  if (positionals.length < wanted.length) throw new UsageError(`${wanted[positionals.length]} is missing`);
  if (positionals.length > wanted.length)
    throw new UsageError(`unexpected argument "${positionals[wanted.length]}"`);
  const config = loadConfig(readEnvironment(), command.mode ?? 'command', unknownSettingsOfProcess());
  await command.run({ values, positionals }, { config, print });
  return 0;
}

function parse(command: Command, words: string[]) {
  try {
    return parseArgs({
      args: words,
      options: { ...command.options, help: { type: 'boolean', short: 'h' } },
      allowPositionals: true,
      strict: true,
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

/** Reports an unknown command. The first word of a group of commands lists the group. */
function reportUnknown(words: readonly string[]): number {
  const text = words
    .slice(0, words.findIndex((word) => word.startsWith('-')) >>> 0)
    .slice(0, 2)
    .join(' ');
  const group = commands.filter(({ name }) => name.startsWith(`${text} `));
  if (group.length > 0) {
    const wantsHelp = words.some((word) => word === '--help' || word === '-h');
    const lines = ['usage: nuncio <command> [options]', '', ...rowsOf(group)].join('\n');
    if (wantsHelp) return print(lines);
    printError(`nuncio: "${text}" is incomplete`);
    printError(lines);
    return exitUsage;
  }
  const near = nearestName(
    text,
    commands.map(({ name }) => name),
  );
  printError(`nuncio: unknown command "${text}"${near === undefined ? '' : `; did you mean "${near}"?`}`);
  printError(overview());
  return exitUsage;
}

function report(error: unknown, entry: CommandEntry, command: Command): number {
  if (error instanceof UsageError) {
    printError(`nuncio ${entry.name}: ${error.message}`);
    printError(help(entry, command));
    return exitUsage;
  }
  // ENOENT is also the code of a missing PostgreSQL socket.
  const isFile = (error as NodeJS.ErrnoException)?.syscall === 'open';
  if (isDatabaseUnavailable(error) && !isFile) {
    printError(`nuncio: the database is unreachable: ${(error as Error).message}`);
    return exitFailed;
  }
  const isPlain = error instanceof Error && plainErrors.has(error.name);
  const text = isPlain
    ? error.message
    : error instanceof Error
      ? (error.stack ?? error.message)
      : String(error);
  for (const line of text.split('\n')) printError(isPlain ? `nuncio: ${line}` : line);
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
  const rows = [...command.help, ['--help', 'show this help'] as const];
  const width = Math.max(...rows.map(([option]) => option.length));
  return [
    `usage: nuncio ${words} [options]`,
    '',
    summary,
    '',
    ...rows.map(([option, meaning]) => `  ${option.padEnd(width)}  ${meaning}`),
  ].join('\n');
}

function print(line: string): 0 {
  process.stdout.write(`${line}\n`);
  return 0;
}

function printError(line: string): void {
  process.stderr.write(`${line}\n`);
}
