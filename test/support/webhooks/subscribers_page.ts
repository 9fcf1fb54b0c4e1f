/** docs/subscribers.md: its programs, and what they have to do with deliveries of a real server. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import type { TestContext } from 'node:test';
import { freePort, type TestServer } from '../servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from './apps.ts';

export const page = readFileSync(new URL('../../../docs/subscribers.md', import.meta.url), 'utf8');

/** The text of each block by its name. */
export const blocks = new Map(
  [...page.matchAll(/^```\w+ (\S+)\n([\s\S]*?)^```$/gm)].map(([, name = '', text = '']) => [name, text]),
);

export interface Program {
  url: string;
  output(): string;
}

/**
 * Runs a program until the test ends, and waits until it listens.
 * @param words its arguments, by the port to listen on
 */
export async function runProgram(
  t: TestContext,
  command: string,
  words: (port: string) => string[],
  settings: NodeJS.ProcessEnv,
  cwd?: string,
): Promise<Program> {
  const port = String(await freePort());
  const child: ChildProcess = spawn(command, words(port), {
    cwd,
    env: { ...process.env, NODE_OPTIONS: '', PORT: port, ...settings },
  });
  t.after(() => child.kill('SIGKILL'));
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (output += chunk));
  const url = `http://127.0.0.1:${port}/hooks`;
  await until(
    async () => {
      assert.equal(child.exitCode, null, output);
      return fetch(url, { method: 'POST' }).then(
        ({ status }) => status,
        () => 0,
      );
    },
    (status) => status === 401,
  );
  return { url, output: () => output };
}

/** Publishes two events to a subscription, and waits until they have succeeded. */
export async function deliverTo(server: TestServer, url: string, fields: object): Promise<void> {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url, ...fields });
  await publish(await createPublisher(server), app.account, ['one', 'two']);
  await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (items) => items.filter(({ state }: { state: string }) => state === 'succeeded').length === 2,
  );
}

/**
 * Returns the marks of the deliveries that a program has printed. Threads of Python write a line and its end separately, so two
 * texts can be on one line.
 */
export function handledMarks(output: string): string[] {
  const handled = output.matchAll(/handled push [0-9a-f-]{36}: .*?refs\/heads\/(one|two)/g);
  return [...handled].map(([, mark = '']) => mark).sort();
}

/** Asserts that a program has printed each delivery once. */
export function assertHandled(output: string, marks: string[]): void {
  assert.deepEqual(handledMarks(output), marks, output);
}
