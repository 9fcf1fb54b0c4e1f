/**
 * Servers on one PostgreSQL with a standby, and their faults. Each method causes or repairs one fault. Each server
 * has its own connection path to the database.
 */

import { spawnSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Environment } from '../../../src/config/environment.ts';
import { migrate } from '../../../src/database/migrate.ts';
import { type DatabaseProxy, startDatabaseProxy } from '../database/database_proxy.ts';
import { atEnd, eventually, newDataDir, start } from '../database/embedded_process.ts';
import { type Replicated, replicate } from '../database/standby.ts';
import { type NuncioProcess, startProcess } from './process.ts';
import { freePort } from './server.ts';

/** A time span, in milliseconds since 1970. */
export interface Span {
  from: number;
  until: number;
}

export type NodeFault = 'kill' | 'stop' | 'cut' | 'freeze';
export type DatabaseFault = 'promote' | 'fill disk';

interface ServerNode {
  baseUrl: string;
  proxy: DatabaseProxy;
  settings: Environment;
  process: NuncioProcess;
  /** Whether a fault currently keeps the server down. */
  isStruck: boolean;
  /** The start in flight. Starts run one at a time, because they use the same port. */
  starting: Promise<void>;
}

/** Size of the file system of a database whose disk can be filled. */
const diskMegabytes = 600;
/** Longest time for which a server is suspended. It exceeds the time after which another node takes over the fan-out. */
const stoppedMsMax = 12_000;

export class NodeCluster {
  readonly nodes: ServerNode[] = [];
  /** The test's own connection path to the database. */
  readonly proxy: DatabaseProxy;
  /** Spans in which a server process was suspended. */
  readonly stops: Span[] = [];
  /** Spans of the failovers, each from the moment when replication stopped. */
  readonly failovers: Span[] = [];
  readonly #t: TestContext;
  #replicated: Replicated;
  /** The file system on which the primary's disk can be filled; null if this machine cannot mount one. */
  #disk: string | null;

  private constructor(t: TestContext, proxy: DatabaseProxy, replicated: Replicated, disk: string | null) {
    this.#t = t;
    this.proxy = proxy;
    this.#replicated = replicated;
    this.#disk = disk;
  }

  static async start(t: TestContext, count: number, settings: Environment): Promise<NodeCluster> {
    const dataDir = newDataDir(t);
    const disk = mountSmall(t, dataDir) ? dataDir : null;
    const primary = await start(dataDir, 'server');
    await migrate(primary.connectionString);
    const proxy = await newProxy(t, primary.connectionString);
    const replicated = await replicate(t, primary, dataDir);
    const cluster = new NodeCluster(t, proxy, replicated, disk);
    for (let index = 0; index < count; index += 1) {
      const own = await newProxy(t, primary.connectionString);
      const port = String(await freePort());
      cluster.nodes.push({
        baseUrl: `http://localhost:${port}`,
        proxy: own,
        settings: { ...settings, PORT: port, DATABASE_URL: own.url },
        process: undefined as never,
        isStruck: false,
        starting: Promise.resolve(),
      });
    }
    for (const node of cluster.nodes) await cluster.#run(node);
    return cluster;
  }

  get canFillDisk(): boolean {
    return this.#disk !== null;
  }

  /** Resolves when the standby has received every commit. */
  caughtUp(): Promise<void> {
    return this.#replicated.caughtUp();
  }

  async strikeNode(node: ServerNode, fault: NodeFault, random: () => number): Promise<void> {
    const { proxy } = node;
    node.isStruck = true;
    if (fault === 'kill') {
      await node.process.end('SIGKILL');
      await sleep(random() * 2_000);
    } else if (fault === 'stop') {
      const span = { from: Date.now(), until: Number.POSITIVE_INFINITY };
      this.stops.push(span);
      node.process.child.kill('SIGSTOP');
      await sleep(500 + random() * (stoppedMsMax - 500));
      node.process.child.kill('SIGCONT');
      span.until = Date.now();
    } else {
      if (fault === 'cut') proxy.cut();
      else proxy.freeze();
      await sleep(random() * 6_000);
      proxy.mend();
    }
    node.isStruck = false;
    await this.#revive(node);
  }

  async strikeDatabase(fault: DatabaseFault, random: () => number): Promise<void> {
    if (fault === 'promote') await this.#failOver(random);
    else await this.#fillDisk(random);
  }

  /** Restarts every server that has exited. */
  async calm(): Promise<void> {
    for (const node of this.nodes) await this.#revive(node);
  }

  /** Stops the servers in an orderly way. @returns their exit codes */
  end(): Promise<(number | string)[]> {
    return Promise.all(this.nodes.map((node) => node.process.end('SIGTERM')));
  }

  async #failOver(random: () => number): Promise<void> {
    const old = this.#replicated;
    const proxies = [this.proxy, ...this.nodes.map((node) => node.proxy)];
    const span = { from: Date.now(), until: Number.POSITIVE_INFINITY };
    this.failovers.push(span);
    await eventually(() => old.disconnect());
    // Transactions that commit now are lost in the failover.
    await sleep(random() * 1_500);
    for (const proxy of proxies) proxy.cut();
    await old.primary.stop();
    await old.promote();
    for (const proxy of proxies) {
      proxy.lead(old.standby.connectionString);
      proxy.mend();
    }
    span.until = Date.now();
    this.#disk = null;
    for (const node of this.nodes) await this.#revive(node);
    this.#replicated = await replicate(this.#t, old.standby, old.standbyDir);
  }

  async #fillDisk(random: () => number): Promise<void> {
    if (this.#disk === null) return;
    const file = join(this.#disk, 'filling');
    const filled = spawnSync('dd', ['if=/dev/zero', `of=${file}`, 'bs=64k', `count=${diskMegabytes * 16}`]);
    if (filled.error !== undefined) throw filled.error;
    await sleep(500 + random() * 3_000);
    rmSync(file, { force: true });
    for (const node of this.nodes) await this.#revive(node);
  }

  /** A server exits if it cannot reach the database at startup. A supervisor would restart it. */
  async #revive(node: ServerNode): Promise<void> {
    node.starting = node.starting.then(async () => {
      const { exitCode, signalCode } = node.process.child;
      if (!node.isStruck && (exitCode !== null || signalCode !== null)) await this.#run(node);
    });
    await node.starting;
  }

  async #run(node: ServerNode): Promise<void> {
    await eventually(async () => {
      node.process = startProcess({ after: (hook) => atEnd(this.#t, hook) }, ['start'], node.settings);
      const { child } = node.process;
      while (!(await isReady(node.baseUrl))) {
        if (child.exitCode !== null || child.signalCode !== null) throw new Error(node.process.output());
        await sleep(100);
      }
    });
  }
}

async function newProxy(t: TestContext, databaseUrl: string): Promise<DatabaseProxy> {
  const proxy = await startDatabaseProxy(databaseUrl);
  atEnd(t, () => proxy.close());
  return proxy;
}

async function isReady(baseUrl: string): Promise<boolean> {
  try {
    return (await fetch(`${baseUrl}/livez`, { signal: AbortSignal.timeout(2_000) })).ok;
  } catch {
    return false;
  }
}

/** Mounts a separate file system in memory at the data directory. @returns whether this machine permits it */
function mountSmall(t: TestContext, dataDir: string): boolean {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  const options = ['-t', 'tmpfs', '-o', `size=${diskMegabytes}m,mode=700`, 'tmpfs', dataDir];
  if (spawnSync('mount', options).status !== 0) {
    rmSync(dataDir, { recursive: true });
    return false;
  }
  writeFileSync(join(dataDir, '.mounted'), '');
  rmSync(join(dataDir, '.mounted'));
  atEnd(t, () => void spawnSync('umount', ['-l', dataDir]));
  return true;
}
