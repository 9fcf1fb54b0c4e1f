/**
 * The cost of a piece of work: time, CPU of every participating process, WAL, statements, memory.
 *
 * CPU comes from /proc in ticks of 10 ms, so it is meaningful only for work of a second or more. On systems without
 * /proc it is NaN. Statements are counted in `pg` as this process sends them, at no cost to the database.
 * Transactions come from pg_stat_database.
 */

import { readdirSync, readFileSync } from 'node:fs';
import pg from 'pg';

const ticksPerSecond = 100;

/** Milliseconds of a clock that all processes of the machine share (CLOCK_MONOTONIC). */
export function monotonicMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

export interface Cost {
  seconds: number;
  /** CPU seconds of this process, of all PostgreSQL processes, and of the given processes. */
  nodeCpu: number;
  postgresCpu: number;
  otherCpu: number;
  /** CPU seconds of everything else on the machine, which disturbed the measurement. */
  foreignCpu: number;
  walBytes: number;
  /** Number of statements that this process sent. */
  statements: number;
  /** Transactions of all connections in this database. Those of the last second may be missing. */
  transactions: number;
  /** Highest resident memory of this process in samples every 100 ms, and its value at the start. */
  rssMaxBytes: number;
  rssBeforeBytes: number;
}

export interface Measured<T> {
  result: T;
  cost: Cost;
}

/**
 * Does the work and reports its cost.
 * @param client a separate connection to the database that the work uses; PostgreSQL must run on this machine
 * @param otherPids further processes whose CPU is included
 */
export async function measure<T>(
  client: pg.Client,
  otherPids: number[],
  work: () => Promise<T>,
): Promise<Measured<T>> {
  const postmaster = await postmasterPid(client);
  const before = await readAll(client, postmaster, otherPids);
  const rssBeforeBytes = process.memoryUsage.rss();
  let rssMaxBytes = rssBeforeBytes;
  const sampling = setInterval(() => {
    rssMaxBytes = Math.max(rssMaxBytes, process.memoryUsage.rss());
  }, 100);
  try {
    const result = await work();
    const after = await readAll(client, postmaster, otherPids);
    const cost: Cost = {
      seconds: (after.atMs - before.atMs) / 1000,
      nodeCpu: after.nodeCpu - before.nodeCpu,
      postgresCpu: after.postgresCpu - before.postgresCpu,
      otherCpu: after.otherCpu - before.otherCpu,
      foreignCpu: after.machineCpu - before.machineCpu,
      walBytes: after.walBytes - before.walBytes,
      statements: after.statements - before.statements,
      transactions: after.transactions - before.transactions,
      rssMaxBytes: Math.max(rssMaxBytes, process.memoryUsage.rss()),
      rssBeforeBytes,
    };
    cost.foreignCpu -= cost.nodeCpu + cost.postgresCpu + cost.otherCpu;
    return { result, cost };
  } finally {
    clearInterval(sampling);
  }
}

interface Reading {
  atMs: number;
  nodeCpu: number;
  postgresCpu: number;
  otherCpu: number;
  machineCpu: number;
  walBytes: number;
  statements: number;
  transactions: number;
}

async function readAll(client: pg.Client, postmaster: number, otherPids: number[]): Promise<Reading> {
  const { user, system } = process.cpuUsage();
  const atMs = monotonicMs();
  const postgresCpu = cpuOfFamily(postmaster);
  const otherCpu = otherPids.reduce((sum, pid) => sum + cpuOf(pid), 0);
  const machineCpu = cpuOfMachine();
  const sent = statementsSent;
  const { rows } = await client.query<{ wal: string; transactions: string }>(`
    select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') as wal,
           xact_commit + xact_rollback as transactions
    from pg_stat_database
    where datname = current_database()`);
  return {
    atMs,
    nodeCpu: (user + system) / 1e6,
    postgresCpu,
    otherCpu,
    machineCpu,
    walBytes: Number(rows[0]?.wal),
    statements: sent,
    transactions: Number(rows[0]?.transactions),
  };
}

let statementsSent = 0;
const query = pg.Client.prototype.query;
// Every statement of this process goes through here, including those of pools and libraries.
pg.Client.prototype.query = function counted(this: pg.Client, ...parameters: unknown[]) {
  statementsSent += 1;
  return Reflect.apply(query, this, parameters);
} as typeof query;

/** Returns the parent of the process that serves this connection. */
async function postmasterPid(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  return statOf(rows[0]?.pid ?? 0)?.parent ?? 0;
}

/** CPU seconds of a process, of its live children, and of its ended children. */
function cpuOfFamily(parent: number): number {
  const self = statOf(parent);
  if (self === undefined) return Number.NaN;
  let sum = self.cpu + self.cpuOfEnded;
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const stat = statOf(Number(entry));
    if (stat?.parent === parent) sum += stat.cpu;
  }
  return sum;
}

/** CPU seconds for which all cores together were busy since the machine started. */
function cpuOfMachine(): number {
  try {
    // cpu user nice system idle iowait irq softirq steal …
    const fields = readFileSync('/proc/stat', 'utf8').split(/\s+/, 9).map(Number);
    return [1, 2, 3, 6, 7, 8].reduce((sum, field) => sum + (fields[field] ?? 0), 0) / ticksPerSecond;
  } catch {
    return Number.NaN;
  }
}

/** CPU seconds of one process; NaN if unknown. */
function cpuOf(pid: number): number {
  return statOf(pid)?.cpu ?? Number.NaN;
}

function statOf(pid: number): { parent: number; cpu: number; cpuOfEnded: number } | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch {
    return undefined;
  }
  // The second field is a name in parentheses that may contain any character. The third is the state, the fourth the
  // parent.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const number = (field: number) => Number(fields[field - 3]);
  return {
    parent: number(4),
    cpu: (number(14) + number(15)) / ticksPerSecond,
    cpuOfEnded: (number(16) + number(17)) / ticksPerSecond,
  };
}

export function median(values: Iterable<number>): number {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? Number.NaN)) / 2;
}
