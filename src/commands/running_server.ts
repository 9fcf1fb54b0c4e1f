/**
 * The server that uses a data directory, for the commands and the demo beside it: `server.json` in the data directory.
 * Written when the server is ready, removed when it stops; ignored once its process has ended.
 */

import { lstatSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Config, isLoopbackHost } from '../config/config.ts';

export interface ServerNotice {
  pid: number;
  base_url: string;
  /** Whether it runs the example platform, because it found no configuration file. */
  example: boolean;
}

/** Timeout for the response of a server on this machine. */
const responseMs = 2_000;

/** @returns a function that removes the notice */
export function announceServer({ dataDir, baseUrl, configFile }: Config): () => void {
  const file = noticeFile(dataDir);
  const notice: ServerNotice = { pid: process.pid, base_url: baseUrl, example: configFile === null };
  const draft = `${file}.${process.pid}`;
  // In a folder that others can write, the name may be a link to another file.
  rmSync(draft, { force: true });
  writeFileSync(draft, `${JSON.stringify(notice)}\n`, { mode: 0o600, flag: 'wx' });
  renameSync(draft, file);
  return () => rmSync(file, { force: true });
}

/** Finds the server that runs on the embedded database of this data directory. Ignores a notice that another user wrote. */
export function findServer(dataDir: string): ServerNotice | undefined {
  try {
    const file = noticeFile(dataDir);
    if (!isTrusted(file, dataDir)) return undefined;
    const notice: unknown = JSON.parse(readFileSync(file, 'utf8'));
    return isNotice(notice) && isAlive(notice.pid) ? notice : undefined;
  } catch {
    return undefined;
  }
}

/** Whether this user, root or the owner of the data directory wrote the file. */
function isTrusted(file: string, dataDir: string): boolean {
  const { uid } = lstatSync(file);
  return [process.getuid?.(), 0, statSync(dataDir).uid].includes(uid);
}

function isNotice(value: unknown): value is ServerNotice {
  const { pid, base_url, example } = (value ?? {}) as Partial<Record<keyof ServerNotice, unknown>>;
  // For the system, 0 and negative ids are groups of processes.
  const isPid = typeof pid === 'number' && Number.isInteger(pid) && pid > 0;
  return isPid && typeof base_url === 'string' && URL.canParse(base_url) && typeof example === 'boolean';
}

/** Whether a server of Nuncio responds at the base URL. Asks only this machine. */
export async function respondsAt(baseUrl: string): Promise<boolean> {
  if (!isLoopbackHost(new URL(baseUrl).hostname)) return false;
  try {
    const signal = AbortSignal.timeout(responseMs);
    const response = await fetch(`${baseUrl}/livez`, { redirect: 'manual', signal });
    return response.headers.has('nuncio-version');
  } catch {
    return false;
  }
}

function noticeFile(dataDir: string): string {
  return join(dataDir, 'server.json');
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
