/**
 * PostgreSQL as Nuncio's own, for everybody who has set no DATABASE_URL: real, durable, reachable by nobody else.
 *
 *   nobody uses it → first user starts it → others join → a user leaves → … → the last one stops it
 *
 * Users (a server, any number of commands) are counted by locks that die with their process, in <dataDir>/postgres.locks:
 *
 *   server   exclusive, held by the server: there is one for each data directory
 *   start    exclusive, held only while somebody starts, joins, leaves or stops
 *   users    shared, held by every user; who leaves and can have it exclusively was the last
 *
 * A user also keeps one idle connection. When that ends although nobody stopped PostgreSQL, it is started again.
 */
import { mkdir, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { findBinaries } from './binaries.ts';
import { passwordOf, prepareCluster } from './cluster.ts';
import { EmbeddedError } from './error.ts';
import { type FileLock, fileLock, tryFileLock } from './file_lock.ts';
import { clusterOf, settle } from './home.ts';
import {
  connectionString,
  findPostmaster,
  startPostmaster,
  stopPostmaster,
  waitForConnection,
} from './postmaster.ts';

export interface EmbeddedOptions {
  /** Made if absent. */
  dataDir: string;
  /** There is one server for each data directory, and any number of commands. */
  role: 'server' | 'command';
  /** Told, in one line each, of a PostgreSQL that was lost and that is back. */
  log?: (line: string) => void;
}

export interface EmbeddedPostgres {
  /** For `pg`; stays the same when PostgreSQL is restarted. */
  connectionString: string;
  /** One line for the log: started or adopted, which version, as which user and why. */
  description: string;
  /** Leaves. If nobody else uses PostgreSQL it is stopped, and has ended when this resolves. */
  stop(): Promise<void>;
}

/** `pg` has these two; its type package does not. */
type UnrefClient = pg.Client & { ref(): void; unref(): void };

/** Others may be in a recovery or a slow shutdown meanwhile. */
const startLockTimeoutMs = 600_000;
const resumePauseMs = 100;
const resumePauseMaxMs = 10_000;

/**
 * Starts PostgreSQL in `<dataDir>/postgres`, or joins the one that runs there.
 * @throws EmbeddedError one sentence for the operator
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
          throw new EmbeddedError(`${this.#lockPath('users')} is locked by something else.`);
      });
    } catch (error) {
      await this.#connection?.end().catch(() => undefined);
      this.#userLock?.release();
      this.#serverLock?.release();
      throw plain(error);
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
          const postmaster = await findPostmaster(await clusterOf(this.#dataDir));
          if (postmaster !== undefined) await stopPostmaster(postmaster);
        } finally {
          last.release();
        }
      });
    } finally {
      this.#userLock?.release();
      this.#serverLock?.release();
    }
  }

  /** Under the start lock: connects to the PostgreSQL that runs, or starts it. */
  async #ensureRunning(): Promise<string> {
    const cluster = await clusterOf(this.#dataDir);
    const running = await findPostmaster(cluster);
    if (running !== undefined) {
      const stillThere = async () => (await findPostmaster(cluster))?.pid === running.pid;
      const connection = await waitForConnection(cluster, stillThere);
      if (connection !== undefined) {
        await this.#keep(connection, cluster);
        return `PostgreSQL in ${cluster}: joined the one that runs (process ${running.pid})`;
      }
    }
    const binaries = findBinaries();
    const home = await settle(this.#dataDir, binaries);
    await prepareCluster(home, binaries.major);
    const connection = await startPostmaster(home, join(this.#dataDir, 'postgres.log'));
    await this.#keep(connection, home.cluster);
    return `PostgreSQL ${Number.parseFloat(binaries.version)} in ${home.cluster}: started ${home.description}`;
  }

  async #keep(connection: pg.Client, cluster: string): Promise<void> {
    const socketDirectory = (await findPostmaster(cluster))?.socketDirectory ?? cluster;
    this.connectionString = connectionString(socketDirectory, await passwordOf(cluster), 'nuncio');
    this.#connection = connection;
    // It must not be what keeps a process alive that has nothing else to do.
    (connection as UnrefClient).unref();
    connection.once('end', () => {
      if (!this.#stopping.signal.aborted && this.#connection === connection) this.#resuming = this.#resume();
    });
  }

  /** PostgreSQL went away under us: brings it back, or waits for who else is doing so. */
  async #resume(): Promise<void> {
    this.#log('PostgreSQL was lost');
    for (let pause = resumePauseMs; ; pause = Math.min(pause * 2, resumePauseMaxMs)) {
      if (this.#stopping.signal.aborted) return;
      try {
        this.#log(await this.#whileStarting(() => this.#ensureRunning()));
        return;
      } catch (error) {
        this.#log(plain(error).message);
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

/** System errors (a full disk, a folder of somebody else's) are the operator's as well. */
function plain(error: unknown): EmbeddedError {
  if (error instanceof EmbeddedError) return error;
  return new EmbeddedError(`The embedded PostgreSQL cannot be used: ${(error as Error).message}.`, {
    cause: error,
  });
}
