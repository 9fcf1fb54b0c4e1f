/** `examples/inside`: an application and the server in one process, which one signal ends. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createDatabase } from '../support/database/database.ts';
import { freePort } from '../support/servers/server.ts';

const main = fileURLToPath(new URL('../../examples/inside/main.ts', import.meta.url));

test('the shop and the server run in one process, and one signal ends both', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const [shop, port] = [await freePort(), await freePort()];
  const child = spawn(process.execPath, [main], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      PATH: process.env.PATH,
      DATABASE_URL: database.url,
      NUNCIO_SECRET: 'a secret of at least thirty-two bytes',
      PORT: String(port),
      HOST: '127.0.0.1',
      LOG_LEVEL: 'error',
      SHOP_PORT: String(shop),
    },
  });
  t.after(() => child.kill('SIGKILL'));
  const [line] = await once(child.stdout, 'data');
  assert.equal(
    String(line),
    `The shop listens at http://localhost:${shop}, Nuncio at http://127.0.0.1:${port}\n`,
  );
  assert.deepEqual(await (await fetch(`http://localhost:${shop}/`)).json(), { tea: 12, coffee: 0 });
  const metadata = await fetch(`http://localhost:${port}/.well-known/oauth-protected-resource/mcp`);
  assert.deepEqual(((await metadata.json()) as Record<string, unknown>).scopes_supported, ['read:stock']);
  child.kill('SIGTERM');
  const [code] = await once(child, 'exit');
  assert.equal(code, 0);
});
