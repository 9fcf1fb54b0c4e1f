/**
 * What `nuncio listen` remembers between starts: tokens and subscriptions, by server. The file is readable for its owner only. It is
 * replaced as a whole, so that a crash leaves the old or the new one.
 */

import { randomBytes } from 'node:crypto';
import { mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export interface Tokens {
  access_token: string;
  refresh_token: string;
  /** Milliseconds since 1970. */
  expires_at: number;
}

export interface KnownSubscription {
  id: string;
  secret: string;
  /** The last sequence that was forwarded. */
  after: number;
}

export interface ServerState {
  tokens?: Tokens;
  /** By the kinds that they were made for. */
  subscriptions: Record<string, KnownSubscription>;
}

/** Another process that holds the lock for longer has died. */
const staleLockMs = 15_000;
const lockPauseMs = 50;

/** @returns the path of the file, by the XDG Base Directory Specification */
export function stateFilePath({
  XDG_CONFIG_HOME,
  HOME,
}: Readonly<Record<string, string | undefined>>): string {
  // Relative paths are to be ignored.
  const base = XDG_CONFIG_HOME?.startsWith('/') ? XDG_CONFIG_HOME : join(HOME ?? '/', '.config');
  return join(base, 'nuncio', 'listen.json');
}

export class StateFile {
  readonly #path: string;
  readonly #server: string;

  /** @param server its base URL */
  constructor(path: string, server: string) {
    this.#path = path;
    this.#server = server;
  }

  async read(): Promise<ServerState> {
    const { [this.#server]: state } = await this.#readAll();
    return { subscriptions: {}, ...state };
  }

  /** Changes the state of this server. Two processes never change the file at the same time. */
  async change<T>(work: (state: ServerState) => Promise<T> | T): Promise<T> {
    await mkdir(dirname(this.#path), { recursive: true, mode: 0o700 });
    const release = await this.#lock();
    try {
      const all = await this.#readAll();
      const state: ServerState = { subscriptions: {}, ...all[this.#server] };
      const result = await work(state);
      await this.#replace(JSON.stringify({ ...all, [this.#server]: state }, null, 2));
      return result;
    } finally {
      await release();
    }
  }

  async #readAll(): Promise<Record<string, ServerState>> {
    try {
      return JSON.parse(await readFile(this.#path, 'utf8'));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' || error instanceof SyntaxError) return {};
      throw error;
    }
  }

  /** Renaming replaces the file and never follows a link in its place. */
  async #replace(text: string): Promise<void> {
    const temporary = `${this.#path}.${randomBytes(8).toString('hex')}`;
    const file = await open(temporary, 'wx', 0o600);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, this.#path);
  }

  async #lock(): Promise<() => Promise<void>> {
    const path = `${this.#path}.lock`;
    for (;;) {
      try {
        await mkdir(path);
        return () => rm(path, { recursive: true, force: true });
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
      const made = await stat(path).catch(() => undefined);
      if (made !== undefined && Date.now() - made.mtimeMs > staleLockMs)
        await rm(path, { recursive: true, force: true });
      else await sleep(lockPauseMs);
    }
  }
}
