#!/usr/bin/env node
/**
 * The command line: finds the command, reads its options, runs it, and says by the exit code how it went:
 * 0 done, 1 failed, 2 called wrongly.
 */

import { parseArgs } from 'node:util';
import { type Command, UsageError } from './commands/command.ts';
import { type CommandEntry, commands } from './commands/commands.ts';
import { loadConfig } from './config/config.ts';
import { readEnvironment } from './config/environment.ts';
import { version } from './version.ts';

const exitFailed = 1;
const exitUsage = 2;

/** Errors whose message is the whole story for an operator; of others the stack is shown. */
const plainErrors = new Set([
  'ConfigError',
  'EmbeddedError',
  'PlatformError',
  'CollectionsError',
  'CommandError',
]);

process.exitCode = await main(process.argv.slice(2));

async function main(words: string[]): Promise<number> {
  const [first] = words;
  if (first === '--version') return print(version);
  if (first === undefined || first === '--help' || first === 'help') {
    print(overview());
    return first === undefined ? exitUsage : 0;
  }
  const entry = findCommand(words);
  if (entry === undefined) {
    printError(`nuncio: there is no command "${words.filter((word) => !word.startsWith('-')).join(' ')}"`);
    printError(overview());
    return exitUsage;
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
  if (positionals.length > wanted.length) throw new UsageError(`"${positionals[wanted.length]}" is too much`);
  const config = loadConfig(readEnvironment(), command.mode ?? 'command');
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

function report(error: unknown, entry: CommandEntry, command: Command): number {
  if (error instanceof UsageError) {
    printError(`nuncio ${entry.name}: ${error.message}`);
    printError(help(entry, command));
    return exitUsage;
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
  const width = Math.max(...commands.map(({ name }) => name.length));
  const rows = commands.map(({ name, summary }) => `  ${name.padEnd(width)}  ${summary}`);
  return [
    'usage: nuncio <command> [options]',
    '',
    ...rows,
    '',
    'Every command takes --help. Settings are environment variables: see docs/settings.md.',
  ].join('\n');
}

function help({ name, summary }: CommandEntry, command: Command): string {
  const words = [name, ...(command.positionals ?? [])].join(' ');
  const rows = [...command.help, ['--help', 'this text'] as const];
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
