/** Faults of a server and its database. Each function causes or repairs one fault. */

import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Environment } from '../../../src/config/environment.ts';
import type { DatabaseProxy } from '../database/database_proxy.ts';
import { eventually, postmasterPid, query } from '../database/embedded_process.ts';
import { type NuncioProcess, startProcess } from './process.ts';

export interface FaultTargets {
  /** The data directory of the embedded PostgreSQL that this process starts and restarts. */
  dataDir: string;
  databaseUrl: string;
  /** The proxy between server and database. */
  proxy: DatabaseProxy;
  settings: Environment;
}

export type FaultName =
  | 'kill server'
  | 'kill postmaster'
  | 'kill backend'
  | 'cut connections'
  | 'freeze connections'
  | 'kill both';

export interface Faults {
  strike: Record<FaultName, (random: () => number) => Promise<void>>;
  /** Times when the server had no database, or may have had none: from and until, milliseconds since 1970. */
  outages: { from: number; until: number }[];
  /** The currently running server. */
  server: () => NuncioProcess;
}

/** Starts the server and enables its faults. */
export async function startWithFaults(t: TestContext, targets: FaultTargets): Promise<Faults> {
  const { dataDir, databaseUrl, proxy, settings } = targets;
  const outages: Faults['outages'] = [];
  let running: NuncioProcess;

  const isBack = () => eventually(() => query(databaseUrl, 'select 1'));
  /** A server exits if it cannot reach the database at startup. A supervisor would restart it. */
  const startServer = () =>
    eventually(async () => {
      running = startProcess(t, ['start'], settings);
      await running.ready();
    });
  const killServer = async () => {
    await running.end('SIGKILL');
    await startServer();
  };
  const away = async (work: () => Promise<unknown>) => {
    const outage = { from: Date.now(), until: Number.POSITIVE_INFINITY };
    outages.push(outage);
    await work();
    await eventually(async () => {
      if (!(await fetch(`${baseUrlOf(settings)}/readyz`)).ok) throw new Error('not ready');
    });
    outage.until = Date.now();
  };
  const killPostmaster = async () => {
    process.kill(await postmasterPid(dataDir), 'SIGKILL');
    await isBack();
  };

  await startServer();
  return {
    outages,
    server: () => running,
    strike: {
      'kill server': killServer,
      'kill postmaster': () => away(killPostmaster),
      'kill backend': (random) =>
        away(async () => {
          const pids = await query<{ pid: number }>(
            databaseUrl,
            `select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() order by pid`,
          );
          const { pid } = pids[Math.floor(random() * pids.length)] as { pid: number };
          process.kill(pid, 'SIGKILL');
          await isBack();
        }),
      'cut connections': (random) =>
        away(async () => {
          proxy.cut();
          await sleep(random() * 2_000);
          proxy.mend();
        }),
      'freeze connections': (random) =>
        away(async () => {
          proxy.freeze();
          await sleep(random() * 4_000);
          proxy.mend();
        }),
      'kill both': () =>
        away(async () => {
          await Promise.all([running.end('SIGKILL'), killPostmaster()]);
          await startServer();
        }),
    },
  };
}

function baseUrlOf(settings: Environment): string {
  return settings.NUNCIO_BASE_URL ?? `http://localhost:${settings.PORT}`;
}
