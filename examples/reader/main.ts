/**
 * Reader: a small app that a user connects and that receives changes by signed webhooks.
 *
 *   npm run demo              starts the app (and a server, if none is running) with a page to click through
 *   npm run demo -- --once    the same without a browser, each step printed
 */

import { readOptions } from '../options.ts';
import { buildReader } from './app.ts';
import {
  deleteClient,
  deleteOlderClients,
  findOrStartNuncio,
  type Nuncio,
  registerClient,
} from './nuncio.ts';
import { discover, scopes } from './oauth.ts';
import { runOnce } from './once.ts';

const usage = `usage: npm run demo -- [--once]

Starts a small app that a user connects and that receives signed webhooks. It uses the server that runs, or starts one.

  --once   go through all steps without a browser and exit
  --help   show this help

NUNCIO_DATA_DIR or DATABASE_URL must be those of the server (default ./data). READER_PORT is the app's port (4000).
`;

// Until the page is served, a signal ends the demo and the server that it started.
let onSignal: () => void = () => process.exit(130);
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => onSignal());

const isOnce = readOptions(usage, { once: { type: 'boolean' } }).once === true;
await main();

async function main(): Promise<void> {
  const readerPort = Number(process.env.READER_PORT ?? 4000);
  const nuncio = await findOrStartNuncio(isOnce);
  try {
    if (isOnce) await runOnce(nuncio);
    else await serve(nuncio, readerPort);
  } finally {
    await nuncio.stop();
  }
  if (isOnce) process.stdout.write('Every step succeeded.\n');
}

async function serve(server: Nuncio, port: number): Promise<void> {
  const url = `http://localhost:${port}`;
  const redirectUri = `${url}/callback`;
  // A demo that was killed left its app, with grants and subscriptions.
  await deleteOlderClients(redirectUri);
  const client = await registerClient(redirectUri, scopes);
  try {
    const configuration = await discover(server.baseUrl, client.client_id, client.client_secret);
    const reader = buildReader({ baseUrl: server.baseUrl, url, configuration });
    await reader.listen({ port, host: 'localhost' }).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EADDRINUSE') throw error;
      throw new Error(`READER_PORT is "${port}": the port is in use; set another READER_PORT`);
    });
    process.stdout.write(`\n  Reader, the demo app, is at  ${url}   (^C ends it)\n\n`);
    await new Promise<void>((resolve) => {
      onSignal = resolve;
    });
    await reader.close();
  } finally {
    await deleteClient(client.client_id);
  }
}
