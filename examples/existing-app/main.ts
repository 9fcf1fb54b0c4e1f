/**
 * Starts everything: an embedded PostgreSQL with the schemas of the shop and Nuncio, a Nuncio server, the shop, and another
 * developer's app. Run `npm run example:existing-app`; ^C ends it and leaves nothing behind.
 */

import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import type { Server } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Express } from 'express';
import * as oidc from 'openid-client';
import { Client, Pool } from 'pg';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { connectNuncio } from './nuncio.ts';
import { createPartner } from './partner.ts';
import { createShop } from './shop.ts';
import { createUser } from './users.ts';

const { PORT: port = '3000', SHOP_PORT: shopPort = '4200', PARTNER_PORT: partnerPort = '4201' } = process.env;
const nuncioUrl = `http://localhost:${port}`;
const shopUrl = `http://localhost:${shopPort}`;
const partnerUrl = `http://localhost:${partnerPort}`;
const here = (name: string) => fileURLToPath(new URL(name, import.meta.url));
const cli = here('../../src/cli.ts');
/** Milliseconds that the server may take to start. */
const startTimeoutMs = 60_000;

await using opened = new AsyncDisposableStack();
const dataDir = await mkdtemp(join(tmpdir(), 'nuncio-existing-app-'));
opened.defer(() => rm(dataDir, { recursive: true, force: true }));
const embedded = await startEmbedded({ dataDir, role: 'server' });
opened.defer(() => embedded.stop());

const environment = {
  ...process.env,
  PORT: port,
  NUNCIO_DATA_DIR: dataDir,
  DATABASE_URL: embedded.connectionString,
  NUNCIO_CONFIG: here('nuncio.config.ts'),
  SHOP_URL: shopUrl,
  PARTNER_URL: partnerUrl,
};

opened.defer(await startNuncio());
await prepareDatabase();
const backend = JSON.parse(await runShell(await readFile(here('clients.sh'), 'utf8')));
const partner = JSON.parse(await runShell(await readFile(here('partner.sh'), 'utf8')));

const database = new URL(embedded.connectionString);
const pool = new Pool({
  host: database.searchParams.get('host') ?? database.hostname,
  port: Number(database.port || 5432),
  database: database.pathname.slice(1),
  user: 'shop',
  password: 'shop',
  max: 4,
});
opened.defer(() => pool.end());
await createUser(pool, 'ann@example.com', 'Ann', 'correct horse');
await createUser(pool, 'bob@example.com', 'Bob', 'battery staple');

const nuncio = await connectNuncio(nuncioUrl, backend.client_id, backend.client_secret);
const configuration = await oidc.discovery(
  new URL(nuncioUrl),
  partner.client_id,
  partner.client_secret,
  oidc.ClientSecretBasic(partner.client_secret),
  { execute: [oidc.allowInsecureRequests] },
);
opened.defer(await listen(createShop(pool, nuncio), shopPort));
opened.defer(await listen(createPartner(configuration, nuncioUrl, partnerUrl), partnerPort));
process.stdout.write(`
  The shop                 ${shopUrl}   ann@example.com, password "correct horse"
  Somebody else's app      ${partnerUrl}   connect the shop, place an order, and see it arrive
  Nuncio                   ${nuncioUrl}   (^C ends it all)

`);
await Promise.race([once(process, 'SIGINT'), once(process, 'SIGTERM')]);

async function startNuncio(): Promise<() => Promise<void>> {
  const child = spawnShell(await readFile(here('start.sh'), 'utf8'));
  process.once('exit', () => child.kill('SIGTERM'));
  const deadline = Date.now() + startTimeoutMs;
  while (!(await isReady())) {
    if (child.exitCode !== null) throw new Error(`the server ended with exit code ${child.exitCode}`);
    if (Date.now() > deadline) throw new Error(`the server did not respond at ${nuncioUrl}`);
    await sleep(100);
  }
  return () => stop(child);
}

async function isReady(): Promise<boolean> {
  return fetch(`${nuncioUrl}/readyz`).then(
    ({ ok }) => ok,
    () => false,
  );
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGTERM');
  await once(child, 'exit');
}

/** Runs SQL as the database administrator. */
async function prepareDatabase(): Promise<void> {
  const client = new Client({ connectionString: embedded.connectionString });
  await client.connect();
  await client.query(await readFile(here('database.sql'), 'utf8'));
  await client.query(await readFile(here('schema.sql'), 'utf8'));
  await client.end();
}

/** Runs commands as written for an installed package: `npx nuncio` becomes the command of this checkout. */
function inShell(script: string): [string[], Record<string, string | undefined>] {
  // The last command replaces the shell and receives its signals.
  const text = `npx() { shift; exec "$NODE" "$CLI" "$@"; }\n${script}`;
  return [['-ec', text], { ...environment, NODE: process.execPath, CLI: cli }];
}

async function runShell(script: string): Promise<string> {
  const [commands, env] = inShell(script);
  return (await promisify(execFile)('sh', commands, { env })).stdout;
}

function spawnShell(script: string): ChildProcess {
  const [commands, env] = inShell(script);
  return spawn('sh', commands, {
    stdio: ['ignore', 'ignore', 'inherit'],
    // In its own process group: the terminal's ^C reaches only this process, which then stops the server.
    detached: true,
    env,
  });
}

async function listen(app: Express, port: string): Promise<() => Promise<void>> {
  const server: Server = app.listen(Number(port), 'localhost');
  await once(server, 'listening');
  return async () => {
    server.close();
    server.closeAllConnections();
  };
}
