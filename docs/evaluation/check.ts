/** What the check of a scenario gets. Checks throw an error that says what is wrong with the solution. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import type { TestServer } from '../../test/support/servers/server.ts';
import { until } from '../../test/support/webhooks/apps.ts';

export interface Stage {
  server: TestServer;
  /** The folder of the solution, with `node_modules`. */
  folder: string;
  after: (hook: () => Promise<void>) => void;
  /** Runs a program of the solution to its end. @returns its standard output. @throws Error if it fails */
  run: (file: string, env: Record<string, string>) => Promise<string>;
  /** Starts a program of the solution that listens on `env.PORT`. @throws Error if it ends */
  start: (
    file: string,
    env: Record<string, string> & { PORT: string },
  ) => Promise<{ stop: () => Promise<void> }>;
  /** Lines of a file of the solution; none if it does not exist. */
  lines: (file: string) => Promise<string[]>;
}

export type Check = (stage: Stage) => Promise<void>;

/** Runs the check of one scenario. @param modules linked as `node_modules` of the folder, by the caller */
export async function runCheck(
  name: string,
  given: Pick<Stage, 'server' | 'folder' | 'after'>,
): Promise<void> {
  const { folder, after } = given;
  const { check } = (await import(new URL(`${name}/check.ts`, import.meta.url).href)) as { check: Check };
  const begin = (file: string, env: Record<string, string>) => {
    const child = spawn(process.execPath, [file], {
      cwd: folder,
      env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
    });
    let [output, errors] = ['', ''];
    child.stdout.on('data', (chunk) => (output += chunk));
    child.stderr.on('data', (chunk) => (errors += chunk));
    return { child, output: () => output, errors: () => errors };
  };
  await check({
    ...given,
    async run(file, env) {
      const { child, output, errors } = begin(file, env);
      const [code] = await once(child, 'close');
      if (code !== 0) throw new Error(`${file} ended with ${code}: ${errors()}`);
      return output();
    },
    async start(file, env) {
      const { child, errors } = begin(file, env);
      after(() => end(child));
      await until(
        async () => {
          if (child.exitCode !== null) throw new Error(`${file} ended: ${errors()}`);
          return listens(Number(env.PORT));
        },
        (isOpen) => isOpen,
      );
      return { stop: () => end(child) };
    },
    async lines(file) {
      const text = await readFile(join(folder, file), 'utf8').catch(() => '');
      return text.split('\n').filter((line) => line !== '');
    },
  });
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGKILL');
  await once(child, 'exit');
}

function listens(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, 'localhost');
    socket.once('connect', () => socket.destroy() && resolve(true)).once('error', () => resolve(false));
  });
}
