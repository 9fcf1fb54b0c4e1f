/**
 * The postmaster, PostgreSQL's main process: finds a running one, starts it, connects to it and stops it.
 *
 * absent → spawned (detached, so that ^C in the terminal does not reach it) → accepts connections → fast shutdown → absent
 *
 * After `kill -9` of the server, the postmaster keeps running; the next start joins it. After `kill -9` of the postmaster,
 * its `postmaster.pid` remains, with a process id that another process may have by now. Its backends may still hold the
 * shared memory.
 */
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { open, rm, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { configure, lastLine, passwordOf, port } from './cluster.ts';
import { EmbeddedError, errorCode } from './error.ts';
import { clusterName, type Home } from './home.ts';
import { commandOf, ownIdentity, run } from './identity.ts';

export interface Postmaster {
  pid: number;
  socketDirectory: string;
}

const pollMs = 10;
/** Recovery after a crash replays up to max_wal_size. */
const startTimeoutMs = 600_000;
const connectTimeoutMs = 10_000;
/** A fast shutdown writes a checkpoint. After this time an immediate shutdown follows, and the next start recovers. */
const fastShutdownTimeoutMs = 120_000;
const orphanTimeoutMs = 3_000;
const sharedMemoryTimeoutMs = 30_000;
const logLengthMax = 10 * 1024 * 1024;

/** Returns the running postmaster of this data directory, if any. */
export async function findPostmaster(cluster: string): Promise<Postmaster | undefined> {
  let lines: string[];
  try {
    // Line 1 is the process id, line 5 the socket directory.
    lines = readFileSync(join(cluster, 'postmaster.pid'), 'utf8').split('\n');
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
  const pid = Number.parseInt(lines[0] ?? '', 10);
  if (!(pid > 0) || !isAlive(pid)) return undefined;
  const line = process.platform === 'linux' ? commandLineOfProc(pid) : (await commandLinesOfPs(pid))[0]?.line;
  // After a kill -9 or a reboot, another process may have this id.
  if (line === undefined || !serves(line, cluster)) return undefined;
  return { pid, socketDirectory: lines[4] || cluster };
}

/**
 * Starts PostgreSQL and connects to it.
 * @param logFile absolute path; truncated first if larger than 10 MiB
 * @throws EmbeddedError with the last line of the log
 */
export async function startPostmaster(home: Home, logFile: string): Promise<pg.Client> {
  const socketDirectory = await configure(home);
  const giveUp = Date.now() + sharedMemoryTimeoutMs;
  for (;;) {
    await endOrphans(home.cluster);
    // No postmaster runs here. Remove the stale file, or PostgreSQL may mistake an unrelated process for a postmaster.
    await rm(join(home.cluster, 'postmaster.pid'), { force: true });
    await rm(join(socketDirectory, `.s.PGSQL.${port}.lock`), { force: true });
    const started = await spawnPostmaster(home, logFile);
    if (started instanceof pg.Client) return started;
    // A backend without a postmaster, which `endOrphans` did not find, still runs. It ends on its own.
    if (/shared memory block .* still in use/.test(started.log) && Date.now() < giveUp) {
      await sleep(250);
      continue;
    }
    const reason =
      started.log.split('\n').findLast((line) => /FATAL|PANIC/.test(line)) ?? lastLine(started.log);
    throw new EmbeddedError(
      `PostgreSQL did not start (${reason.replace(/^.*?(FATAL|PANIC):\s*/, '')}); its log is ${logFile}.`,
    );
  }
}

async function spawnPostmaster(home: Home, logFile: string): Promise<pg.Client | { log: string }> {
  const log = await open(logFile, 'a+', 0o600);
  try {
    if ((await log.stat()).size > logLengthMax) await truncate(logFile);
    const logStart = (await log.stat()).size;
    const line = commandOf(home.identity, join(home.native, 'bin', 'postgres'), [
      ...['-D', home.cluster, '-c', `cluster_name=${clusterName(home.cluster)}`],
    ]);
    const stdio = ['ignore', log.fd, log.fd] as const;
    const child = spawn(line.command, line.args, { ...line.options, detached: true, stdio: [...stdio] });
    let ended = false;
    child.on('error', () => {
      ended = true;
    });
    child.on('exit', () => {
      ended = true;
    });
    child.unref();
    const client = await waitForConnection(home.cluster, () => !ended);
    if (client !== undefined) return client;
    const { size } = await log.stat();
    const { buffer, bytesRead } = await log.read(
      Buffer.alloc(Math.min(size - logStart, 65_536)),
      0,
      undefined,
      logStart,
    );
    return { log: buffer.toString('utf8', 0, bytesRead) };
  } finally {
    await log.close();
  }
}

/**
 * Connects as soon as PostgreSQL accepts connections, which it does after crash recovery.
 * @param alive whether the postmaster still runs
 * @returns undefined when it does not
 */
export async function waitForConnection(
  cluster: string,
  alive: () => boolean | Promise<boolean>,
): Promise<pg.Client | undefined> {
  const giveUp = Date.now() + startTimeoutMs;
  while (await alive()) {
    const postmaster = await findPostmaster(cluster);
    if (postmaster !== undefined) {
      const outcome = await connect(cluster, postmaster.socketDirectory, 'nuncio');
      if (outcome instanceof pg.Client) return outcome;
      if (outcome === '3D000') await createDatabase(cluster, postmaster.socketDirectory);
      if (Date.now() > giveUp) {
        throw new EmbeddedError(
          `PostgreSQL (process ${postmaster.pid}) runs but accepts no connections (${outcome}).`,
        );
      }
    }
    await sleep(pollMs);
  }
  return undefined;
}

/** Connects, or returns the error code. */
async function connect(
  cluster: string,
  socketDirectory: string,
  database: string,
): Promise<pg.Client | string> {
  const client = new pg.Client({
    connectionString: connectionString(socketDirectory, await passwordOf(cluster), database),
    connectionTimeoutMillis: connectTimeoutMs,
    application_name: 'nuncio-embedded',
  });
  // The 'end' event reports later errors.
  client.on('error', () => undefined);
  try {
    await client.connect();
    return client;
  } catch (error) {
    await client.end().catch(() => undefined);
    if (errorCode(error) === '28P01') {
      throw new EmbeddedError(
        `The embedded PostgreSQL refuses the password in ${join(cluster, 'nuncio.password')}.`,
      );
    }
    return errorCode(error) ?? (error as Error).message;
  }
}

async function createDatabase(cluster: string, socketDirectory: string): Promise<void> {
  const client = await connect(cluster, socketDirectory, 'postgres');
  if (!(client instanceof pg.Client)) return;
  try {
    await client.query('create database nuncio');
  } finally {
    await client.end();
  }
}

/** Works for `pg` and `psql`. Sets port and sslmode explicitly, so that PGPORT and PGSSLMODE have no effect. */
export function connectionString(socketDirectory: string, password: string, database: string): string {
  return `postgres://nuncio:${password}@localhost:${port}/${database}?host=${encodeURIComponent(socketDirectory)}&sslmode=disable`;
}

/** Performs a fast shutdown: rolls back open transactions, writes everything, and waits for the process to end. */
export async function stopPostmaster(postmaster: Postmaster): Promise<void> {
  const { pid } = postmaster;
  signal(pid, 'SIGINT');
  const immediate = Date.now() + fastShutdownTimeoutMs;
  let hurried = false;
  while (isAlive(pid)) {
    if (!hurried && Date.now() > immediate) {
      signal(pid, 'SIGQUIT');
      hurried = true;
    }
    await sleep(pollMs);
  }
}

/** Ends the backends of a killed postmaster. Their open transactions are lost anyway; committed data is in the WAL. */
export async function endOrphans(cluster: string): Promise<void> {
  const kill = Date.now() + orphanTimeoutMs;
  for (;;) {
    const orphans = await processesOf(cluster);
    if (orphans.length === 0) return;
    for (const { pid } of orphans) signal(pid, Date.now() < kill ? 'SIGQUIT' : 'SIGKILL');
    await sleep(pollMs * 2);
  }
}

/** Returns all PostgreSQL processes of this data directory. */
async function processesOf(cluster: string): Promise<{ pid: number }[]> {
  const all = process.platform === 'linux' ? commandLinesOfProc() : await commandLinesOfPs();
  return all.filter(({ pid, line }) => serves(line, cluster) && isAlive(pid));
}

/** The cluster name is in every command line: an argument of the postmaster, and part of the other processes' titles. */
function serves(line: string, cluster: string): boolean {
  return (
    line.includes(clusterName(cluster)) &&
    /^(postgres: |.*\/bin\/postgres -D )/.test(line) &&
    !/^\S*(env|setpriv) /.test(line)
  );
}

function commandLinesOfProc(): { pid: number; line: string }[] {
  const pids = readdirSync('/proc').filter((entry) => /^\d+$/.test(entry));
  return pids.map((entry) => ({ pid: Number(entry), line: commandLineOfProc(Number(entry)) }));
}

function commandLineOfProc(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
  } catch {
    // The process has ended.
    return '';
  }
}

async function commandLinesOfPs(pid?: number): Promise<{ pid: number; line: string }[]> {
  const which = pid === undefined ? ['-ax'] : ['-p', String(pid)];
  const { output } = await run(ownIdentity(), 'ps', [...which, '-ww', '-o', 'pid=,command=']);
  return output.split('\n').map((row) => {
    const [, pid, line] = /^\s*(\d+)\s+(.*)$/.exec(row) ?? [];
    return { pid: Number(pid), line: line ?? '' };
  });
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if (errorCode(error) !== 'EPERM') return false;
  }
  if (process.platform !== 'linux') return true;
  try {
    // A zombie has ended. In a container, the first process may never reap it.
    const status = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return !/^\) [ZX]/.test(status.slice(status.lastIndexOf(')')));
  } catch {
    return false;
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if (errorCode(error) !== 'ESRCH') throw error;
  }
}
