/** Nuncio as a separate process, for tests that kill it. */

import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { runCommandLine } from '../../../src/commands/command_line.ts';
import { type Config, loadConfig } from '../../../src/config/config.ts';
import type { Environment } from '../../../src/config/environment.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { createDatabase } from '../database/database.ts';
import { dataFolder } from '../runner/data_folder.ts';
import { freePort, testSecret } from './server.ts';

const cli = fileURLToPath(new URL('../../../src/cli.ts', import.meta.url));

/** A scope with `after`: the context of a test, or the `after` of a file or suite. */
interface Scope {
  after: (hook: () => Promise<void>) => void;
}

export interface NuncioProcess {
  child: ChildProcess;
  /** The output of both streams so far. */
  output: () => string;
  /** Resolves when `/readyz` returns 200. @throws Error with the output when the process exits before */
  ready: () => Promise<void>;
  /** Sends a signal and waits for the exit. @returns the exit code, or the name of the signal */
  end: (signal: NodeJS.Signals) => Promise<number | string>;
}

/**
 * The environment of a child process: the settings of the test and the variables that every program needs. The runner's
 * compile cache saves a third of the cost of a start.
 */
function environmentOf(settings: Environment): NodeJS.ProcessEnv {
  const { PATH, HOME, TMPDIR, NODE_COMPILE_CACHE } = process.env;
  const shared = Object.entries({ TMPDIR, NODE_COMPILE_CACHE }).filter(([, value]) => value !== undefined);
  return { PATH, HOME, ...Object.fromEntries(shared), ...settings };
}

/**
 * Runs a server command (`dev` or `start`). Stops it after the test, if it still runs.
 * @param nodeOptions Node options, before the file
 * @param file the command to run instead of the one in the sources
 * @param cwd the current directory; by default the one of the tests, which has the example platform
 */
export function startProcess(
  scope: Scope,
  words: string[],
  settings: Environment,
  nodeOptions: string[] = [],
  file = cli,
  cwd?: string,
): NuncioProcess {
  const child = spawn(process.execPath, [...nodeOptions, file, ...words], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: environmentOf(settings),
    cwd,
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  const ended = new Promise<number | string>((resolve) => {
    child.once('exit', (code, signal) => resolve(code ?? signal ?? -1));
  });
  const hasEnded = () => child.exitCode !== null || child.signalCode !== null;
  scope.after(async () => {
    if (!hasEnded()) child.kill('SIGTERM');
    await ended;
  });
  const baseUrl = settings.NUNCIO_BASE_URL ?? `http://localhost:${settings.PORT}`;
  return {
    child,
    output: () => output,
    async ready() {
      while (!(await isReady(baseUrl))) {
        if (hasEnded()) throw new Error(`the server ended:\n${output}`);
        await sleep(50);
      }
    },
    async end(signal) {
      child.kill(signal);
      return ended;
    },
  };
}

/** A database for server processes that a test starts and stops, with the settings that start one on it. */
export interface ProcessHost {
  settings: Environment & { PORT: string; DATABASE_URL: string };
  db: Database;
  config: Config;
  baseUrl: string;
}

/**
 * Creates a migrated database and the settings for `nuncio start` on it. Drops the database after the test.
 * @param more additional settings
 */
export async function prepareProcess(scope: Scope, more: Environment = {}): Promise<ProcessHost> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  scope.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const settings = {
    PORT: String(await freePort()),
    DATABASE_URL: database.url,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    LOG_LEVEL: 'error',
    ...more,
  };
  const config = loadConfig(settings, 'start');
  return { settings, db, config, baseUrl: config.baseUrl };
}

async function isReady(baseUrl: string): Promise<boolean> {
  try {
    return (await fetch(`${baseUrl}/readyz`)).ok;
  } catch {
    return false;
  }
}

export interface CommandResult {
  code: number;
  stdout: string;
  stderr: string;
}

/**
 * Runs a command until it ends, in this process.
 * @param cwd the current directory; by default the one of the tests, which has the example platform
 */
export async function runCommand(
  words: string[],
  settings: Environment,
  cwd = process.cwd(),
): Promise<CommandResult> {
  const [stdout, stderr]: [string[], string[]] = [[], []];
  const code = await runCommandLine(words, {
    environment: settings,
    folder: cwd,
    print: (line) => stdout.push(`${line}\n`),
    printError: (line) => stderr.push(`${line}\n`),
  });
  return { code, stdout: stdout.join(''), stderr: stderr.join('') };
}

/** Runs a command as a process, as users do, until it exits. */
export function runCommandProcess(
  words: string[],
  settings: Environment,
  cwd?: string,
): Promise<CommandResult> {
  const options = { env: environmentOf(settings), cwd };
  return new Promise((resolve) => {
    execFile(process.execPath, [cli, ...words], options, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code ?? 1), stdout, stderr });
    });
  });
}

/** Creates an empty folder and removes it after the test. */
export async function temporaryFolder(scope: Scope): Promise<string> {
  const folder = await mkdtemp(join(dataFolder(), 'nuncio-test-'));
  scope.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}
