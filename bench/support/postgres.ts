/** The embedded PostgreSQL of a benchmark with its default settings (fsync on), in a temporary folder. */

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';

export interface BenchPostgres {
  /** Creates an empty database after a checkpoint, so that it does not pay for earlier writes. */
  createDatabase(): Promise<BenchDatabase>;
  stop(): Promise<void>;
}

export interface BenchDatabase {
  url: string;
  /** A connection for `measure`. */
  client: pg.Client;
  drop(): Promise<void>;
}

/** Opens a pool for a sender. Closing connections may still report that their database was dropped. */
export function openPool(url: string, connectionsMax: number): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, max: connectionsMax });
  const report = (error: Error) => {
    if (!pool.ending) console.error(error);
  };
  pool.on('error', report);
  // For connections that a library has checked out.
  pool.on('connect', (client) => client.on('error', report));
  return pool;
}

export async function startPostgres(): Promise<BenchPostgres> {
  const dataDir = await mkdtemp(join(tmpdir(), 'nuncio-bench-senders-'));
  const embedded = await startEmbedded({ dataDir, role: 'server' });
  const admin = new pg.Client({ connectionString: embedded.connectionString });
  await admin.connect();
  let databases = 0;
  return {
    async createDatabase() {
      const name = `bench_${databases++}`;
      await admin.query(`create database ${name}`);
      await admin.query('checkpoint');
      const url = new URL(embedded.connectionString);
      url.pathname = `/${name}`;
      const client = new pg.Client({ connectionString: url.href });
      await client.connect();
      return {
        url: url.href,
        client,
        async drop() {
          await client.end();
          await admin.query(`drop database ${name} with (force)`);
        },
      };
    },
    async stop() {
      await admin.end();
      await embedded.stop();
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}
