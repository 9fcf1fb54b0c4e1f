/** The server inside another process: the public function `createServer`. */

import assert from 'node:assert/strict';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { test } from 'node:test';
import { defineConfig, defineEventKind, defineTool, Type } from '../src/index.ts';
import { ConfigError, createServer, PlatformError } from '../src/library.ts';
import { createDatabase } from './support/database/database.ts';
import { freePort } from './support/servers/server.ts';

const secret = 'a secret of at least thirty-two bytes';

const tool = defineTool({
  name: 'count_calls',
  description: 'Counts.',
  input: Type.Object({}),
  output: Type.Object({}),
  scope: 'read:calls',
  handler: () => ({}),
});

async function settingsFor(databaseUrl: string) {
  const port = String(await freePort());
  return {
    DATABASE_URL: databaseUrl,
    NUNCIO_SECRET: secret,
    PORT: port,
    HOST: '127.0.0.1',
    NUNCIO_BASE_URL: `http://127.0.0.1:${port}`,
    LOG_LEVEL: 'silent',
  };
}

test('a declaration in the process becomes a server, which closes once and completely', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const settings = await settingsFor(database.url);
  const listeners = process.listenerCount('SIGTERM');
  const server = await createServer(defineConfig({ tools: [tool], mcp: { enabled: true } }), { settings });
  assert.equal(server.address, settings.NUNCIO_BASE_URL);
  assert.equal(process.listenerCount('SIGTERM'), listeners, 'signals are the application’s');
  assert.equal((await fetch(`${server.address}/readyz`)).status, 200);
  const metadata = await fetch(`${server.address}/.well-known/oauth-protected-resource/mcp`);
  assert.deepEqual(((await metadata.json()) as Record<string, unknown>).scopes_supported, ['read:calls']);
  // The port is in use, and what failed to start leaves nothing behind.
  await assert.rejects(createServer(defineConfig({}), { settings }), /PORT is "\d+": the port is in use/);
  await Promise.all([server.close(), server.close()]);
  await assert.rejects(fetch(`${server.address}/readyz`));
  const again = await createServer(defineConfig({}), { settings, migrate: false });
  await again.close();
});

test('a file can declare the platform, and a relative path begins in the current directory', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const folder = mkdtempSync(join(tmpdir(), 'library-'));
  const file = join(folder, 'shop.config.ts');
  const entry = resolve('src/index.ts');
  writeFileSync(
    file,
    `import { defineConfig } from ${JSON.stringify(entry)};\nexport default defineConfig({ brand: { name: 'Shop' } });\n`,
  );
  const server = await createServer(file, { settings: await settingsFor(database.url) });
  assert.match(await (await fetch(`${server.address}/docs`)).text(), /Shop/);
  await server.close();
  const missing = createServer('missing.config.ts', { settings: await settingsFor(database.url) });
  await assert.rejects(missing, new RegExp(`${resolve('missing.config.ts')}: cannot be loaded`));
});

test('mistakes are reported together, before anything starts', async () => {
  const invalid = { PORT: 'x', NUNCIO_SECRET: 'short', NUNCIO_PROT: '1' };
  await assert.rejects(createServer(defineConfig({}), { settings: invalid }), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.equal(error.problems.length, 3);
    return true;
  });
  const kind = defineEventKind({
    name: 'order.paid',
    object: 'orders',
    description: 'An order was paid.',
    schema: Type.Object({ id: Type.String() }),
    example: { id: '1' },
    version: '2026-06-01',
    versions: {
      '2026-01-01': { schema: Type.Object({ number: Type.String() }), from: () => ({ number: '1' }) },
    },
  });
  await assert.rejects(createServer(defineConfig({ eventKinds: [kind] }), { settings: {} }), (error) => {
    assert.ok(error instanceof PlatformError, String(error));
    assert.match(error.message, /order\.paid\.versions: a kind with versions must be declared in a file/);
    return true;
  });
});
