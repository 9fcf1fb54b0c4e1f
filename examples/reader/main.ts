/**
 * Reader: a small app that a user connects and that receives changes by signed webhooks.
 *
 *   npm run demo              starts the app (and a server, if none is running) with a page to click through
 *   npm run demo -- --once    the same without a browser, each step printed
 */

import { parseArgs } from 'node:util';
import { buildReader } from './app.ts';
import { deleteClient, findOrStartNuncio, type Nuncio, registerClient } from './nuncio.ts';
import { discover, scopes } from './oauth.ts';
import { runOnce } from './once.ts';

const { values } = parseArgs({ options: { once: { type: 'boolean', default: false } } });
const serverPort = process.env.PORT ?? '3000';
const baseUrl = process.env.NUNCIO_BASE_URL ?? `http://localhost:${serverPort}`;
const readerPort = Number(process.env.READER_PORT ?? 4000);

// Until the page is served, a signal ends the demo and the server that it started.
let onSignal: () => void = () => process.exit(130);
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => onSignal());

try {
  await main();
} catch (error) {
  process.stderr.write(`✗ ${values.once ? (error as Error).stack : (error as Error).message}\n`);
  process.exitCode = 1;
}

async function main(): Promise<void> {
  const nuncio = await findOrStartNuncio(baseUrl, values.once);
  try {
    if (values.once) await runOnce(nuncio);
    else await serve(nuncio);
  } finally {
    await nuncio.stop();
  }
  if (values.once) process.stdout.write('Every step succeeded.\n');
}

async function serve(server: Nuncio): Promise<void> {
  const url = `http://localhost:${readerPort}`;
  const client = await registerClient(`${url}/callback`, scopes);
  const configuration = await discover(server.baseUrl, client.client_id, client.client_secret);
  const reader = buildReader({ baseUrl: server.baseUrl, url, configuration });
  try {
    await reader.listen({ port: readerPort, host: 'localhost' });
    process.stdout.write(`\n  Reader, the demo app, is at  ${url}   (^C ends it)\n\n`);
    await new Promise<void>((resolve) => {
      onSignal = resolve;
    });
    await reader.close();
  } finally {
    await deleteClient(client.client_id);
  }
}
