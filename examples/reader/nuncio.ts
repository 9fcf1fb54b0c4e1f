/**
 * The operator's part of the demo: finds or starts a server, and registers the app and a user on the command line.
 */

import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { findServer } from '../../src/commands/running_server.ts';

const cli = fileURLToPath(new URL('../../src/cli.ts', import.meta.url));

const clientName = 'Reader';
/** Milliseconds that a started server may take until it responds. */
const startTimeoutMs = 30_000;

export interface Nuncio {
  baseUrl: string;
  /** Whether the demo started it. */
  started: boolean;
  stop(): Promise<void>;
}

/** Finds the server, or starts one in development mode. */
export async function findOrStartNuncio(quiet: boolean): Promise<Nuncio> {
  const { NUNCIO_BASE_URL, PORT, NUNCIO_DATA_DIR = 'data', DATABASE_URL } = process.env;
  const wanted = NUNCIO_BASE_URL ?? (PORT === undefined ? undefined : `http://localhost:${PORT}`);
  const dataDir = resolve(NUNCIO_DATA_DIR);
  const running = DATABASE_URL === undefined ? findServer(dataDir) : undefined;
  const baseUrl = wanted ?? running?.base_url ?? 'http://localhost:3000';
  if (running !== undefined && running.base_url !== baseUrl) {
    throw new Error(`the server that uses ${dataDir} is at ${running.base_url}, not at ${baseUrl}`);
  }
  if (await answers(baseUrl)) {
    // The demo registers its app in the database: it must be the one of the server.
    if (DATABASE_URL === undefined && running === undefined) {
      throw new Error(
        `the server at ${baseUrl} does not use ${dataDir}: set NUNCIO_DATA_DIR or DATABASE_URL as that server has it`,
      );
    }
    await requireArticles(baseUrl);
    return { baseUrl, started: false, stop: async () => {} };
  }
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
  await requireArticles(baseUrl).catch(async (error) => {
    await stop(child);
    throw error;
  });
  return { baseUrl, started: true, stop: () => stop(child) };
}

/** The demo uses the articles of the example platform. */
async function requireArticles(baseUrl: string): Promise<void> {
  const catalogue = await (await fetch(`${baseUrl}/asyncapi.json`)).text();
  if (!catalogue.includes('article.published'))
    throw new Error(
      `the server at ${baseUrl} has no articles: start it with the nuncio.config.ts of the repository`,
    );
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
    ...['client', 'create', '--name', clientName, '--redirect-uri', redirectUri],
    ...['--grant', 'authorization_code', '--grant', 'refresh_token'],
    ...scopes.flatMap((scope) => ['--scope', scope]),
    '--json',
  );
}

/** `nuncio client delete`, which also ends the app's grants and subscriptions. */
export async function deleteClient(clientId: string): Promise<void> {
  await run('client', 'delete', clientId);
}

/** Deletes the apps of earlier demos with this redirect URI. */
export async function deleteOlderClients(redirectUri: string): Promise<void> {
  const clients = await nuncio<{ client_id: string; name: string; redirect_uris: string[] }[]>(
    ...['client', 'list', '--json'],
  );
  for (const { client_id, name, redirect_uris } of clients) {
    if (name === clientName && redirect_uris.includes(redirectUri)) await deleteClient(client_id);
  }
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

/** `nuncio trigger`: publishes an event, as the operator's own program would. @param changes of the kind's example */
export async function triggerEvent(kind: string, email: string, changes: readonly string[]): Promise<void> {
  await run('trigger', kind, '--account', email, ...changes.flatMap((change) => ['--set', change]));
}

async function nuncio<Answer>(...words: string[]): Promise<Answer> {
  return JSON.parse(await run(...words)) as Answer;
}

/** @throws Error with what the command printed */
async function run(...words: string[]): Promise<string> {
  try {
    return (await promisify(execFile)(process.execPath, [cli, ...words])).stdout;
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string };
    throw new Error(stderr?.trim() || message);
  }
}
