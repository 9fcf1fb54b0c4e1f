/** Two server processes on one database. */

import type { TestContext } from 'node:test';
import { loadConfig } from '../../../src/config/config.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { createDatabase } from '../database/database.ts';
import { until } from '../webhooks/apps.ts';
import { type NuncioProcess, startProcess } from './process.ts';
import { freePort, type ReachableServer, testSecret } from './server.ts';

export interface TwoNodes {
  db: Database;
  databaseUrl: string;
  /** The leader. It started first and holds the first lanes. */
  first: NuncioProcess;
  serverA: ReachableServer;
  serverB: ReachableServer;
}

/** Starts two servers and waits until both are ready. Stops them after the test, even if the first is suspended. */
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
  // Resumes a suspended server, so that it can exit.
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
  // Runs after the servers, because cleanup runs in the order of registration.
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const serverA = { db, config, baseUrl: config.baseUrl };
  return { db, databaseUrl: database.url, first, serverA, serverB: { ...serverA, baseUrl } };
}
