/**
 * Servers on one PostgreSQL with a standby, and their faults: one call causes or repairs each. Each server
 * has its own connection path to the database.
 */

import { spawnSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Environment } from '../../src/config/environment.ts';
import { migrate } from '../../src/database/migrate.ts';
import { type DatabaseProxy, startDatabaseProxy } from './database_proxy.ts';
import { atEnd, eventually, newDataDir, start } from './embedded_process.ts';
import { type NuncioProcess, startProcess } from './process.ts';
import { freePort } from './server.ts';
import { type Replicated, replicate } from './standby.ts';

/** A stretch of time, in milliseconds since 1970. */
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
  /** Whether a fault keeps it down for the moment. */
  isStruck: boolean;
  /** Its start under way: one at a time, or two would want its port. */
  starting: Promise<void>;
}

/** Bytes of the file system of a database whose disk can be filled. */
const diskMegabytes = 600;
/** Milliseconds that a server is stopped at most: longer than a fan-out's leader may be away. */
const stoppedMsMax = 12_000;

export class NodeCluster {
  readonly nodes: ServerNode[] = [];
  /** The test's own way to the database. */
  readonly proxy: DatabaseProxy;
  /** When a server was stopped as a whole. */
  readonly stops: Span[] = [];
  /** When a standby took over: from the moment in which it heard nothing any more. */
  readonly failovers: Span[] = [];
  readonly #t: TestContext;
  #replicated: Replicated;
  /** Where the primary's disk can be filled; null where this machine does not let us. */
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
    const cluster = new NodeCluster(t, proxy, await replicate(t, primary, dataDir), disk);
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

  /** Resolves when the standby has everything that was committed. */
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

  /** Everything runs again. */
  async calm(): Promise<void> {
    for (const node of this.nodes) await this.#revive(node);
  }

  /** Ends the servers in an orderly way. @returns their exit codes */
  end(): Promise<(number | string)[]> {
    return Promise.all(this.nodes.map((node) => node.process.end('SIGTERM')));
  }

  async #failOver(random: () => number): Promise<void> {
    const old = this.#replicated;
    const proxies = [this.proxy, ...this.nodes.map((node) => node.proxy)];
    const span = { from: Date.now(), until: Number.POSITIVE_INFINITY };
    this.failovers.push(span);
    await eventually(() => old.disconnect());
    // What is committed now is lost.
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

  /** A server that finds no database ends: whoever watches over it starts it again. */
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

/** Puts a file system of its own, in memory, where the data directory is to be. @returns whether this machine lets us */
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
