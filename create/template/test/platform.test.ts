/** Starts the server with an embedded database of its own, and reads what it offers. */

import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { createServer } from 'nuncio/server';
import config from '../nuncio.config.ts';

const dataDir = await mkdtemp(join(tmpdir(), 'platform-'));
const port = await freePort();
const server = await createServer(config, {
  settings: { HOST: '127.0.0.1', PORT: String(port), NUNCIO_DATA_DIR: dataDir, LOG_LEVEL: 'error' },
});
after(async () => {
  await server.close();
  await rm(dataDir, { recursive: true, force: true });
});

async function freePort(): Promise<number> {
  const probe = createHttpServer();
  await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

test('the API has notes, and nobody reads them without a token', async () => {
  const document = (await (await fetch(`${server.address}/openapi.json`)).json()) as { paths: object };
  assert.ok('/notes' in document.paths);
  assert.equal((await fetch(`${server.address}/notes`)).status, 401);
});

test('apps can subscribe to the events', async () => {
  const document = await (await fetch(`${server.address}/asyncapi.json`)).text();
  for (const kind of ['note.created', 'invoice.paid']) assert.ok(document.includes(kind), kind);
});
