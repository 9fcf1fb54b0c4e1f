/** Two server processes on one database. */

import type { TestContext } from 'node:test';
import { loadConfig } from '../../src/config/config.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { createDatabase } from './database.ts';
import { type NuncioProcess, startProcess } from './process.ts';
import { freePort, type TestServer, testSecret } from './server.ts';
import { until } from './webhooks.ts';

export interface TwoNodes {
  db: Database;
  databaseUrl: string;
  /** Leads the fan-out, and holds the lanes that come first: it started first. */
  first: NuncioProcess;
  /** As much of a test server as what asks by HTTP needs. */
  serverA: TestServer;
  serverB: TestServer;
}

/** Both are ready. They end after the test, also where the first was left standing still. */
export async function startTwoNodes(t: TestContext): Promise<TwoNodes> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
  const [portA, portB] = [String(await freePort()), String(await freePort())];
  const settings = {
    NUNCIO_BASE_URL: `http://localhost:${portA}`,
    DATABASE_URL: database.url,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    LOG_LEVEL: 'error',
  };
  const config = loadConfig({ ...settings, PORT: portA }, 'start');
  // Whatever happens, it can hear that it is to end.
  t.after(async () => {
    first.child.kill('SIGCONT');
  });
  const first = startProcess(t, ['start'], { ...settings, PORT: portA });
  await first.ready();
  startProcess(t, ['start'], { ...settings, PORT: portB });
  const baseUrl = `http://localhost:${portB}`;
  await until(
    async () => (await fetch(`${baseUrl}/readyz`).catch(() => undefined))?.status,
    (status) => status === 200,
  );
  // After the servers, which are taken down in the order in which they were started.
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  // The servers are processes of their own: what a test server can be asked in this process is not there.
  const serverA = { db, config, baseUrl: config.baseUrl } as unknown as TestServer;
  return { db, databaseUrl: database.url, first, serverA, serverB: { ...serverA, baseUrl } };
}
