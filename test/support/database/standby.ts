/** An embedded PostgreSQL with an asynchronous streaming standby, for failover tests. */

import { spawnSync } from 'node:child_process';
import { appendFileSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import pg from 'pg';
import type { EmbeddedPostgres } from '../../../src/database/embedded/embedded.ts';
import { eventually, newDataDir, query, start } from './embedded_process.ts';

export interface Replicated {
  primary: EmbeddedPostgres;
  standby: EmbeddedPostgres;
  /** The standby's data directory. */
  standbyDir: string;
  /** Waits until the standby has received every commit. */
  caughtUp: () => Promise<void>;
  /** Stops replication to the standby. */
  disconnect: () => Promise<void>;
  /** Promotes the standby to a primary on a new timeline. */
  promote: () => Promise<void>;
}

/** Starts a primary and its standby, and stops both after the test. */
export async function startReplicated(t: TestContext): Promise<Replicated> {
  const dataDir = newDataDir(t);
  const primary = await start(dataDir, 'server');
  return replicate(t, primary, dataDir);
}

/** Starts a standby of a running PostgreSQL. @param dataDir the standby's data directory */
export async function replicate(
  t: TestContext,
  primary: EmbeddedPostgres,
  dataDir: string,
): Promise<Replicated> {
  const standbyDir = newDataDir(t);
  await copyCluster(primary.connectionString, dataDir, standbyDir);
  const standby = await start(standbyDir, 'server');
  const onStandby = <T>(text: string) => query<T>(standby.connectionString, text);
  return {
    primary,
    standby,
    standbyDir,
    async caughtUp() {
      const [{ lsn } = { lsn: '' }] = await query<{ lsn: string }>(
        primary.connectionString,
        'select pg_current_wal_flush_lsn() as lsn',
      );
      await eventually(async () => {
        const [row] = await onStandby<{ is_there: boolean }>(
          `select pg_last_wal_replay_lsn() >= '${lsn}'::pg_lsn as is_there`,
        );
        if (row?.is_there !== true) throw new Error('the standby lags');
      });
    },
    async disconnect() {
      await onStandby(`alter system set primary_conninfo = ''`);
      await onStandby('select pg_reload_conf()');
      await eventually(async () => {
        const receivers = await onStandby('select from pg_stat_wal_receiver');
        if (receivers.length > 0) throw new Error('the standby still listens');
      });
    },
    async promote() {
      await onStandby('select pg_promote()');
    },
  };
}

/** Copies a running PostgreSQL as the base backup of a standby. */
async function copyCluster(connectionString: string, from: string, to: string): Promise<void> {
  const client = new pg.Client({ connectionString });
  await client.connect();
  try {
    await client.query(`select pg_backup_start('standby', true)`);
    mkdirSync(to, { recursive: true, mode: 0o700 });
    // Files can disappear during the copy. Replaying the WAL accounts for them.
    spawnSync('cp', ['-a', join(from, 'postgres'), to]);
    const { rows } = await client.query('select labelfile from pg_backup_stop(false)');
    const cluster = join(to, 'postgres');
    rmSync(join(cluster, 'postmaster.pid'), { force: true });
    writeFileSync(join(cluster, 'backup_label'), rows[0].labelfile, { mode: 0o600 });
    writeFileSync(join(cluster, 'standby.signal'), '', { mode: 0o600 });
    const url = new URL(connectionString);
    const conninfo = [
      `host=${url.searchParams.get('host')}`,
      `port=${url.port}`,
      `user=${url.username}`,
      `password=${url.password}`,
      'sslmode=disable',
    ].join(' ');
    appendFileSync(join(cluster, 'postgresql.auto.conf'), `primary_conninfo = '${conninfo}'\n`);
  } finally {
    await client.end();
  }
}
