/** The settings are those that were asked for, and a production server starts with them. */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { loadConfig } from '../../../src/config/config.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { startServer } from '../../../src/server.ts';
import { createDatabase } from '../../../test/support/database/database.ts';
import { freePort } from '../../../test/support/servers/server.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ folder, after }) => {
  const text = await readFile(join(folder, 'nuncio.env'), 'utf8');
  const lines = text.split('\n').filter((line) => line.trim() !== '' && !line.startsWith('#'));
  const given = Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf('=');
      return [line.slice(0, at), line.slice(at + 1).replace(/^(["'])(.*)\1$/, '$2')];
    }),
  );
  const database = await createDatabase();
  const wanted = {
    NUNCIO_BASE_URL: 'https://id.example.com',
    NUNCIO_TRUST_PROXY: '10.0.0.5',
    HOST: '127.0.0.1',
    PORT: '3100',
    NUNCIO_METRICS_PORT: '9464',
    NUNCIO_NODE_NAME: 'node-1',
    NUNCIO_RATE_LIMIT: '1200',
  };
  for (const [name, value] of Object.entries(wanted))
    assert.equal(given[name]?.replace(/\/$/, ''), value, name);
  assert.ok((given.NUNCIO_SECRET ?? '').length >= 32, 'NUNCIO_SECRET');
  const [port, metricsPort] = [String(await freePort()), String(await freePort())];
  const environment = { ...given, DATABASE_URL: database.url, PORT: port, NUNCIO_METRICS_PORT: metricsPort };
  const config = loadConfig({ ...environment, LOG_LEVEL: 'silent' }, 'start');
  const running = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: database.url,
    secret: Buffer.from(given.NUNCIO_SECRET as string),
    logger: pino({ level: 'silent' }),
    enginePlace: 'here',
  });
  after(async () => {
    await running.close();
    await database.drop();
  });
  const metrics = (at: string) =>
    fetch(`http://127.0.0.1:${at}/metrics`, { headers: { host: 'id.example.com' } });
  assert.equal((await metrics(metricsPort)).status, 200);
  assert.notEqual((await metrics(port)).status, 200);
};
