/** The demo as a process. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Environment } from '../../src/config/environment.ts';

export const demo = fileURLToPath(new URL('../../examples/reader/main.ts', import.meta.url));

interface Scope {
  after: (close: () => Promise<void>) => unknown;
}

/** Starts the demo beside a server. @returns the URL of its page, once it responds */
export async function startReader(
  scope: Scope,
  settings: Environment,
  port: number,
  onStart: (child: ChildProcess) => void = () => {},
): Promise<string> {
  const child = spawn(process.execPath, [demo], {
    stdio: 'ignore',
    env: { ...process.env, ...settings, READER_PORT: String(port) },
  });
  scope.after(() => end(child));
  onStart(child);
  const url = `http://localhost:${port}`;
  while (
    !(await fetch(url).then(
      () => true,
      () => false,
    ))
  ) {
    assert.equal(child.exitCode, null, 'the demo ended');
    await sleep(50);
  }
  return url;
}

async function end(child: ChildProcess): Promise<void> {
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  child.kill('SIGTERM');
  await ended;
}
