/**
 * The embedded PostgreSQL, used when DATABASE_URL is not set: a real PostgreSQL, durable, reachable by its owner only.
 *
 *   not running → the first process starts it → others join → a process leaves → … → the last one stops it
 *
 * Processes (one server, any number of commands) are counted by file locks in <dataDir>/postgres.locks. The operating system
 * releases a lock when its process ends.
 *
 *   server   exclusive, held by the server: one per data directory
 *   start    exclusive, held while a process starts, joins, leaves or stops PostgreSQL
 *   users    shared, held by every process; a leaving process that can lock it exclusively is the last
 *
 * Each process also keeps one idle connection. If that ends unexpectedly, the process restarts PostgreSQL.
 */
import { mkdir, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { findBinaries } from './binaries.ts';
import { passwordOf, prepareCluster } from './cluster.ts';
import { asEmbeddedError, EmbeddedError } from './error.ts';
import { type FileLock, fileLock, tryFileLock } from './file_lock.ts';
import { clusterOf, resolveHome } from './home.ts';
import {
  connectionString,
  endOrphans,
  findPostmaster,
  startPostmaster,
  stopPostmaster,
  waitForConnection,
} from './postmaster.ts';

export interface EmbeddedOptions {
  /** Created if absent. */
  dataDir: string;
  /** One server and any number of commands can use a data directory. */
  role: 'server' | 'command';
  /** Receives one line when PostgreSQL is lost, and one when it is back. */
  log?: (line: string) => void;
}

export interface EmbeddedPostgres {
  /** Stays the same when PostgreSQL restarts. */
  connectionString: string;
  /** One line for the log: whether PostgreSQL was started or joined, its version and its user. */
  description: string;
  /** Leaves. The last process also stops PostgreSQL and waits for its end. */
  stop(): Promise<void>;
}

/** `pg` has these methods; its type package lacks them. */
type UnrefClient = pg.Client & { ref(): void; unref(): void };

/** Another process may be in crash recovery or a slow shutdown. */
const startLockTimeoutMs = 600_000;
const resumePauseMs = 100;
const resumePauseMaxMs = 10_000;

/**
 * Starts PostgreSQL in `<dataDir>/postgres`, or joins a running one.
 * @throws EmbeddedError
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<EmbeddedPostgres> {
  const dataDir = await openDataDir(options.dataDir);
  const session = new EmbeddedSession(dataDir, options);
  await session.start();
  return session;
}

async function openDataDir(path: string): Promise<string> {
  try {
    await mkdir(join(path, 'postgres.locks'), { recursive: true, mode: 0o700 });
    return await realpath(path);
  } catch (error) {
    throw new EmbeddedError(`The data directory ${path} cannot be used: ${(error as Error).message}.`);
  }
}

class EmbeddedSession implements EmbeddedPostgres {
  connectionString = '';
  description = '';
  readonly #dataDir: string;
  readonly #role: 'server' | 'command';
  readonly #log: (line: string) => void;
  readonly #stopping = new AbortController();
  #serverLock: FileLock | undefined;
  #userLock: FileLock | undefined;
  #connection: pg.Client | undefined;
  #resuming: Promise<void> | undefined;
  #stopped: Promise<void> | undefined;

  constructor(dataDir: string, options: EmbeddedOptions) {
    this.#dataDir = dataDir;
    this.#role = options.role;
    this.#log = options.log ?? (() => undefined);
  }

  async start(): Promise<void> {
    if (this.#role === 'server') {
      this.#serverLock = tryFileLock(this.#lockPath('server'), 'exclusive');
      if (this.#serverLock === undefined) throw new EmbeddedError(`Another server runs on ${this.#dataDir}.`);
    }
    try {
      await this.#whileStarting(async () => {
        this.description = await this.#ensureRunning();
        this.#userLock = tryFileLock(this.#lockPath('users'), 'shared');
        if (this.#userLock === undefined)
          throw new EmbeddedError(`${this.#lockPath('users')} is locked by another program.`);
      });
    } catch (error) {
      await this.#connection?.end().catch(() => undefined);
      this.#userLock?.release();
      this.#serverLock?.release();
      throw asEmbeddedError(error);
    }
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#leave();
    return this.#stopped;
  }

  async #leave(): Promise<void> {
    this.#stopping.abort();
    await this.#resuming;
    (this.#connection as UnrefClient | undefined)?.ref();
    await this.#connection?.end().catch(() => undefined);
    try {
      await this.#whileStarting(async () => {
        this.#userLock?.release();
        const last = tryFileLock(this.#lockPath('users'), 'exclusive');
        if (last === undefined) return;
        try {
          const cluster = clusterOf(this.#dataDir);
          const postmaster = await findPostmaster(cluster);
          if (postmaster !== undefined) await stopPostmaster(postmaster);
          // The backends of a killed postmaster may still run.
          else await endOrphans(cluster);
        } finally {
          last.release();
        }
      });
    } finally {
      this.#userLock?.release();
      this.#serverLock?.release();
    }
  }

  /** Connects to the running PostgreSQL, or starts it. Requires the start lock. */
  async #ensureRunning(): Promise<string> {
    const cluster = clusterOf(this.#dataDir);
    const running = await findPostmaster(cluster);
    if (running !== undefined) {
      const stillThere = async () => (await findPostmaster(cluster))?.pid === running.pid;
      const connection = await waitForConnection(cluster, stillThere);
      if (connection !== undefined) {
        await this.#keep(connection, cluster);
        return `PostgreSQL in ${cluster}: joined the running process ${running.pid}`;
      }
    }
    const binaries = findBinaries();
    const home = await resolveHome(this.#dataDir, binaries.native);
    await prepareCluster(home, binaries.major);
    const connection = await startPostmaster(home, join(this.#dataDir, 'postgres.log'));
    await this.#keep(connection, home.cluster);
    return `PostgreSQL ${Number.parseFloat(binaries.version)} in ${home.cluster}: started ${home.identity.description}`;
  }

  async #keep(connection: pg.Client, cluster: string): Promise<void> {
    const socketDirectory = (await findPostmaster(cluster))?.socketDirectory ?? cluster;
    this.connectionString = connectionString(socketDirectory, await passwordOf(cluster), 'nuncio');
    this.#connection = connection;
    // The idle connection must not keep the process alive.
    (connection as UnrefClient).unref();
    connection.once('end', () => {
      if (!this.#stopping.signal.aborted && this.#connection === connection) this.#resuming = this.#resume();
    });
  }

  /** Restarts PostgreSQL after it was lost, or waits while another process restarts it. */
  async #resume(): Promise<void> {
    this.#log('PostgreSQL was lost');
    for (let pause = resumePauseMs; ; pause = Math.min(pause * 2, resumePauseMaxMs)) {
      if (this.#stopping.signal.aborted) return;
      try {
        this.#log(await this.#whileStarting(() => this.#ensureRunning()));
        return;
      } catch (error) {
        this.#log(asEmbeddedError(error).message);
      }
      await sleep(pause, undefined, { signal: this.#stopping.signal }).catch(() => undefined);
    }
  }

  async #whileStarting<T>(work: () => Promise<T>): Promise<T> {
    const lock = await fileLock(this.#lockPath('start'), startLockTimeoutMs);
    try {
      return await work();
    } finally {
      lock.release();
    }
  }

  #lockPath(name: 'server' | 'start' | 'users'): string {
    return join(this.#dataDir, 'postgres.locks', name);
  }
}
