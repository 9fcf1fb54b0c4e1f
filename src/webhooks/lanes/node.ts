/**
 * This node's place among those that send: a row in `nodes`. The lanes that name the node are its own while the row is there.
 * The node counts its looks at the database in the row. A node that has not looked for 3 s starts nothing; one whose counter
 * has stood for 7 s by the clock of another node is buried, and others take its lanes. What it had in flight may then arrive a
 * second time; it writes nothing any more.
 *
 *   joined → (looks every second, renewed every few) → left, or silent → buried, its lanes taken by others → joined again
 */

import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { beginEpoch } from '../../database/epoch.ts';
import { exchangeTimeoutMs } from '../sending/sender.ts';
import { stepMsMin } from './clock_steps.ts';
import { abandonLanes } from './lane_store.ts';
import { type Peer, Peers } from './peers.ts';

/** Seconds that a renewal holds, more than an exchange and 15 s. Nodes of earlier versions go by that. */
const leaseSeconds = 45;
export const renewPauseMs = 5_000;
/** Milliseconds that are left for an exchange begun at the last moment, and for writing down what became of it. */
const marginMs = exchangeTimeoutMs + 5_000;

export interface NodeOptions {
  /** Given by the operator, to one node at a time; null for none. */
  name: string | null;
  onError: (error: Error) => void;
  /** Others took the node for dead: it holds nothing any more. */
  onLost: () => void;
  /** The database's clock has gone back by so many milliseconds. */
  onClockBack: (stepMs: number) => void;
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
  #roundTripMs = 0;
  #isAbandoned = false;
  /** What the database has counted. */
  #looks = 0;
  readonly #peers = new Peers();
  #turn: Promise<void> = Promise.resolve();
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
    await this.#inTurn(() => this.#renew());
    await this.#removeNamesakes();
    await this.heartbeat();
    this.#timer = setInterval(() => {
      this.#inTurn(() => this.#renew()).catch(this.#options.onError);
    }, renewPauseMs);
    this.#timer.unref();
  }

  async leave(): Promise<void> {
    clearInterval(this.#timer);
    this.#safeUntil = 0;
    await this.#inTurn(async () => {
      await abandonLanes(this.#db, [this.id]);
      await sql`delete from nodes where id = ${this.id}`.execute(this.#db);
    });
  }

  /** Ends without a word to the database. */
  abandon(): void {
    clearInterval(this.#timer);
    this.#safeUntil = 0;
    this.#isAbandoned = true;
  }

  /**
   * Says that the node lives, and takes the lanes of those that do not. What is read after it is news.
   * @throws Error where the node cannot go on: it belongs to another epoch of the database
   */
  async heartbeat(): Promise<void> {
    await this.#inTurn(async () => {
      const askedAt = performance.now();
      const { rows } = await sql<LookRow>`
        with own as (update nodes set looks = looks + 1 where id = ${this.id} returning looks)
        select (select looks from own) as own_looks, current_epoch()::text as epoch,
          n.id, n.host, n.process, n.looks, n.alive_until < now() as is_late
        from (select) as one left join nodes n on n.id <> ${this.id}`.execute(this.#db);
      const [{ own_looks: ownLooks, epoch }] = rows as [LookRow];
      this.#heedEpoch(epoch);
      if (ownLooks === null) await this.#renew();
      else if (Number(ownLooks) <= this.#looks) await this.#beginEpoch();
      else this.#looks = Number(ownLooks);
      const peers = rows.flatMap((row) => (row.id === null ? [] : [{ ...row, id: row.id }]));
      await this.#removeDeadPeers(peers, askedAt, performance.now());
    });
  }

  #heedEpoch(epoch: string): void {
    this.#options.onEpoch(epoch);
    if (this.#isAbandoned) throw new Error('the node belongs to another epoch of the database');
  }

  /** The database has forgotten looks of this node: it was put back to an earlier state. */
  async #beginEpoch(): Promise<never> {
    await beginEpoch(this.#db);
    throw new Error('the database was put back to an earlier state');
  }

  /** One statement about the own row at a time: what each of them finds is true when the next begins. */
  async #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => {});
    await turn;
  }

  async #renew(): Promise<void> {
    const askedAt = performance.now();
    const { rows } = await sql<{ now: number; is_new: boolean; looks: string; epoch: string }>`
      insert into nodes (id, host, process, alive_until, looks, name)
      values (${this.id}, ${place.host}, ${place.process}, now() + make_interval(secs => ${leaseSeconds}),
        -- Another number than in an earlier life: whoever has noted that one as silent must not take it for this one.
        1 + floor(random() * 1000000000)::bigint, ${this.#options.name})
      on conflict (id) do update set alive_until = excluded.alive_until
      returning (extract(epoch from clock_timestamp()) * 1000)::float8 as now, xmax = 0 as is_new, looks,
        current_epoch()::text as epoch`.execute(this.#db);
    this.#heedEpoch(rows[0]?.epoch ?? '');
    if (rows[0]?.is_new) {
      this.#looks = Number(rows[0].looks);
      if (this.#safeUntil > 0) this.#options.onLost();
    }
    // Counted from before the question: the database began to count later.
    this.#safeUntil = askedAt + leaseSeconds * 1_000 - marginMs;
    const clockOffset = (rows[0]?.now ?? 0) - (askedAt + performance.now()) / 2;
    // Each is known to half of its round trip only: what took long is no step.
    const roundTripMs = performance.now() - askedAt;
    const stepMs = this.#clockOffset - clockOffset;
    if (stepMs > stepMsMin + (roundTripMs + this.#roundTripMs) / 2) this.#options.onClockBack(stepMs);
    this.#clockOffset = clockOffset;
    this.#roundTripMs = roundTripMs;
  }

  /** Nodes that have been silent, and those of this machine whose process is gone: nobody needs to wait for them. */
  async #removeDeadPeers(peers: readonly PeerRow[], askedAt: number, answeredAt: number): Promise<void> {
    const gone = peers.filter(
      ({ host, process, looks, is_late }) =>
        // A node of an earlier version counts nothing.
        (looks === '0' && is_late) || (host === place.host && !isRunning(process)),
    );
    const counting = peers.filter(({ looks }) => looks !== '0');
    const dead = new Map(
      [...this.#peers.observe(counting, askedAt, answeredAt), ...gone].map((peer) => [peer.id, peer]),
    );
    this.hasPeers = peers.length > dead.size;
    await removeDeadNodes(this.#db, [...dead.values()]);
  }

  /** A node of the same name is one that was here before: the operator says that no two have the same. */
  async #removeNamesakes(): Promise<void> {
    const { name } = this.#options;
    if (name === null) return;
    const { rows } = await sql<Peer>`
      select id, looks from nodes where name = ${name} and id <> ${this.id}`.execute(this.#db);
    await removeDeadNodes(this.#db, rows);
  }
}

interface PeerRow extends Peer {
  host: string;
  process: string;
  is_late: boolean;
}

interface LookRow extends Omit<PeerRow, 'id'> {
  /** Null where there is no other node. */
  id: string | null;
  /** Null where others took this one for dead. */
  own_looks: string | null;
  epoch: string;
}

/** Takes the lanes of nodes that are dead; others take them at once. One that has looked meanwhile is not. */
export async function removeDeadNodes(
  db: Database,
  nodes: readonly { id: string; looks: string | null }[],
): Promise<void> {
  if (nodes.length === 0) return;
  await db.transaction().execute(async (tx) => {
    // Only who takes the row away takes the lanes.
    const { rows: gone } = await sql<{ id: string }>`
      delete from nodes using unnest(
        ${nodes.map(({ id }) => id)}::bigint[], ${nodes.map(({ looks }) => looks)}::bigint[]
      ) as given (id, looks)
      where nodes.id = given.id and nodes.looks = coalesce(given.looks, nodes.looks)
      returning nodes.id`.execute(tx);
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
