/**
 * The operator's part of the demo: finds or starts a server, and registers the app and a user on the command line.
 */

import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const cli = fileURLToPath(new URL('../../src/cli.ts', import.meta.url));

/** Milliseconds that a started server may take until it responds. */
const startTimeoutMs = 30_000;

export interface Nuncio {
  baseUrl: string;
  /** Whether the demo started it. */
  started: boolean;
  stop(): Promise<void>;
}

/** Finds the server at `baseUrl`, or starts one in development mode. */
export async function findOrStartNuncio(baseUrl: string, quiet: boolean): Promise<Nuncio> {
  if (await answers(baseUrl)) return { baseUrl, started: false, stop: async () => {} };
  const child = spawn(process.execPath, [cli, 'dev'], {
    stdio: ['ignore', quiet ? 'ignore' : 'inherit', 'inherit'],
    // In its own process group: the terminal's ^C reaches only the demo, which then stops the server.
    detached: true,
    env: { ...process.env, PORT: new URL(baseUrl).port || '80' },
  });
  process.once('exit', () => child.kill('SIGTERM'));
  const deadline = Date.now() + startTimeoutMs;
  while (!(await answers(baseUrl))) {
    if (child.exitCode !== null) throw new Error(`the server ended with exit code ${child.exitCode}`);
    if (Date.now() > deadline) {
      await stop(child);
      throw new Error(`the server did not respond at ${baseUrl} within ${startTimeoutMs / 1000} seconds`);
    }
    await sleep(100);
  }
  return { baseUrl, started: true, stop: () => stop(child) };
}

async function answers(baseUrl: string): Promise<boolean> {
  try {
    return (await fetch(`${baseUrl}/readyz`)).ok;
  } catch {
    return false;
  }
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGTERM');
  await ended;
}

export interface RegisteredClient {
  client_id: string;
  client_secret: string;
}

/** `nuncio client create`: a confidential web app. */
export function registerClient(redirectUri: string, scopes: readonly string[]): Promise<RegisteredClient> {
  return nuncio<RegisteredClient>(
    ...['client', 'create', '--name', 'Reader', '--redirect-uri', redirectUri],
    ...['--grant', 'authorization_code', '--grant', 'refresh_token'],
    ...scopes.flatMap((scope) => ['--scope', scope]),
    '--json',
  );
}

/** `nuncio client delete`, which also ends the app's grants and subscriptions. */
export async function deleteClient(clientId: string): Promise<void> {
  await promisify(execFile)(process.execPath, [cli, 'client', 'delete', clientId]);
}

/** `nuncio user create`. */
export function createUser(email: string, password: string): Promise<{ id: string }> {
  return nuncio(
    'user',
    'create',
    '--email',
    email,
    '--password',
    password,
    '--name',
    'Rita Reader',
    '--json',
  );
}

async function nuncio<Answer>(...words: string[]): Promise<Answer> {
  const { stdout } = await promisify(execFile)(process.execPath, [cli, ...words]);
  return JSON.parse(stdout) as Answer;
}
