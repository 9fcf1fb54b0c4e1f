/**
 * This node's place among those that send: a row in `nodes` that it renews. While the row is in time, the lanes that
 * name the node are its own; when it is not, others take them. The node itself stops starting attempts well before,
 * so that nothing of it is under way when that happens.
 *
 *   joined → (renewed every few seconds) → left, or late → its lanes taken by others
 */

import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { exchangeTimeoutMs } from '../sending/sender.ts';
import { abandonLanes } from './lane_store.ts';

/** Seconds that a node's word holds, more than an exchange and 15 s. */
const leaseSeconds = 45;
const renewPauseMs = 5_000;
/** Milliseconds that are left for an exchange begun at the last moment, and for writing down what became of it. */
const marginMs = exchangeTimeoutMs + 5_000;

export interface NodeOptions {
  onError: (error: Error) => void;
  /** Others took the node for dead: it holds nothing any more. */
  onLost: () => void;
  /** The database's epoch, each time that the node is renewed. */
  onEpoch: (epoch: string) => void;
}

export class Node {
  /** New at each start, so that it tells apart what an earlier life of the process did. */
  readonly id = String(randomBytes(8).readBigUInt64BE() >> 2n);
  readonly #db: Database;
  readonly #options: NodeOptions;
  /** Of the process's own clock: what the time of day does is of no account. */
  #safeUntil = 0;
  #clockOffset = 0;
  #isAbandoned = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(db: Database, options: NodeOptions) {
    this.#db = db;
    this.#options = options;
  }

  /** Whether other nodes send, too. */
  hasPeers = false;

  /** Whether an attempt may be started now. */
  get maySend(): boolean {
    return performance.now() < this.#safeUntil;
  }

  /** The database's time of day, in milliseconds since 1970. Steps of this machine's clock do not touch it. */
  now(): number {
    return performance.now() + this.#clockOffset;
  }

  async join(): Promise<void> {
    await this.#renew();
    this.#timer = setInterval(() => {
      this.#renew().catch(this.#options.onError);
    }, renewPauseMs);
    this.#timer.unref();
  }

  async leave(): Promise<void> {
    clearInterval(this.#timer);
    this.#safeUntil = 0;
    await abandonLanes(this.#db, [this.id]);
    await sql`delete from nodes where id = ${this.id}`.execute(this.#db);
  }

  /** Ends without a word to the database. */
  abandon(): void {
    clearInterval(this.#timer);
    this.#safeUntil = 0;
    this.#isAbandoned = true;
  }

  async #renew(): Promise<void> {
    const askedAt = performance.now();
    const { rows } = await sql<{ now: number; is_new: boolean; epoch: string }>`
      insert into nodes (id, host, process, alive_until)
      values (${this.id}, ${place.host}, ${place.process}, now() + make_interval(secs => ${leaseSeconds}))
      on conflict (id) do update set alive_until = excluded.alive_until
      returning (extract(epoch from clock_timestamp()) * 1000)::float8 as now, xmax = 0 as is_new,
        current_epoch()::text as epoch`.execute(this.#db);
    this.#options.onEpoch(rows[0]?.epoch ?? '');
    if (this.#isAbandoned) return;
    if (rows[0]?.is_new && this.#safeUntil > 0) this.#options.onLost();
    // Counted from before the question: the database began to count later.
    this.#safeUntil = askedAt + leaseSeconds * 1_000 - marginMs;
    this.#clockOffset = (rows[0]?.now ?? 0) - (askedAt + performance.now()) / 2;
    await this.#buryOthers();
  }

  /** Nodes whose time is over, and those of this machine whose process is gone: nobody needs to wait for them. */
  async #buryOthers(): Promise<void> {
    const { rows } = await sql<{ id: string; host: string; process: string; is_late: boolean }>`
      select id, host, process, alive_until < now() as is_late from nodes where id <> ${this.id}`.execute(
      this.#db,
    );
    const dead = rows.filter(
      ({ host, process, is_late }) => is_late || (host === place.host && !isRunning(process)),
    );
    this.hasPeers = rows.length > dead.length;
    await buryNodes(
      this.#db,
      dead.map(({ id }) => id),
    );
  }
}

/** Takes the lanes of nodes that are dead for sure; others take them at once. */
export async function buryNodes(db: Database, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return;
  await db.transaction().execute(async (tx) => {
    // Only who takes the row away takes the lanes.
    const { rows: gone } = await sql<{ id: string }>`
      delete from nodes where id = any(${ids}::bigint[]) returning id`.execute(tx);
    await abandonLanes(
      tx,
      gone.map(({ id }) => id),
    );
  });
}

/** Where this process runs: the machine since its last start and the space of process numbers, and its number. */
const place = { host: readHost(), process: `${process.pid} ${readStartTime(process.pid)}` };

function readHost(): string {
  try {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return `${hostname()} ${boot} ${readlinkSync('/proc/self/ns/pid')}`;
  } catch {
    // Elsewhere than on Linux nobody is taken for dead before the time is over.
    return `${hostname()} ${randomBytes(8).toString('hex')}`;
  }
}

/** A process number alone may be another process by now. */
function readStartTime(pid: number): string {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
  } catch {
    return '';
  }
}

function isRunning(processId: string): boolean {
  const [pid = '', startTime] = processId.split(' ');
  return existsSync(`/proc/${pid}`) && readStartTime(Number(pid)) === startTime;
}
