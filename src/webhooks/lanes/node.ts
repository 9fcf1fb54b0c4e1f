/**
 * This node's membership: a row in `nodes`. The node's leases are valid while the row exists. The node increments a heartbeat
 * counter in it (the column `heartbeats`). A node without a heartbeat for 3 s starts nothing, and the others record that it is
 * silent. A node whose counter has not changed for 7 s by another node's clock is removed, and others claim its lanes. Another
 * node may repeat the attempts that it had in flight. The database discards their late outcomes (fencing).
 *
 *   joined → (heartbeat every second) → left
 *                                    → silent → removed, its lanes claimed by others → joined again
 */

import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { beginEpoch } from '../../database/epoch.ts';
import { releaseLeasesOf } from '../../database/lease.ts';
import { aliveSeconds } from '../../grants/delivery_hold.ts';
import { abandonLanes } from './lane_store.ts';
import { type Peer, Peers } from './peers.ts';

/** What this version can serve: subscriptions of migration 0023 (1), and the numbering of 0027 (2). Earlier versions have 0. */
const generation = 2;

export interface NodeOptions {
  /** For heartbeats. Gives up a silent connection before the heartbeat is too old. */
  pulse: Database;
  /** Set by the operator, for one node at a time (node_name.ts); null if not set. */
  name: string | null;
  onError: (error: Error) => void;
  /** Another node removed this one, so it has no leases any more. */
  onLost: () => void;
  /** Called with the database's epoch at each heartbeat. */
  onEpoch: (epoch: string) => void;
}

export class Node {
  /** New at each start, so that it never names an earlier process. */
  readonly id = String(randomBytes(8).readBigUInt64BE() >> 2n);
  readonly #db: Database;
  readonly #options: NodeOptions;
  /** What to add to the monotonic clock to get the database's. */
  #clockOffset = 0;
  #isAbandoned = false;
  /** The heartbeat counter in the database. */
  #heartbeats = 0;
  readonly #peers = new Peers();
  #turn: Promise<void> = Promise.resolve();

  constructor(db: Database, options: NodeOptions) {
    this.#db = db;
    this.#options = options;
  }

  /** Whether other nodes are sending. */
  hasPeers = false;

  /**
   * The database's time of day in milliseconds since 1970. Steps of this machine's clock do not affect it.
   */
  now(): number {
    return performance.now() + this.#clockOffset;
  }

  async join(): Promise<void> {
    await this.#add();
    await this.heartbeat();
  }

  async leave(): Promise<void> {
    await this.#inTurn(async () => {
      await abandonLanes(this.#db, [this.id]);
      await sql`delete from nodes where id = ${this.id}`.execute(this.#db);
    });
  }

  /** Leaves without accessing the database. */
  abandon(): void {
    this.#isAbandoned = true;
  }

  /**
   * Sends a heartbeat and removes dead nodes. Later reads are current.
   * @throws Error if the node belongs to an earlier epoch of the database
   */
  async heartbeat(): Promise<void> {
    await this.#inTurn(async () => {
      const askedAt = performance.now();
      const { rows } = await sql<HeartbeatRow>`
        with own as (
          update nodes set heartbeats = heartbeats + 1, alive_until = ${aliveUntil} where id = ${this.id} returning heartbeats)
        select (select heartbeats from own) as own_heartbeats, current_epoch()::text as epoch,
          (extract(epoch from clock_timestamp()) * 1000)::float8 as now,
          n.id, n.host, n.process, n.heartbeats,
          n.silent_heartbeats = n.heartbeats and n.silent_epoch = current_epoch() as is_recorded_silent
        from (select) as one left join nodes n on n.id <> ${this.id}`.execute(this.#options.pulse);
      const [first] = rows as [HeartbeatRow];
      const { own_heartbeats: ownHeartbeats, epoch, now } = first;
      this.#options.onEpoch(epoch);
      if (this.#isAbandoned) throw new Error('the node belongs to an earlier epoch of the database');
      const readAt = performance.now();
      this.#clockOffset = now - (askedAt + readAt) / 2;
      if (ownHeartbeats === null) {
        await this.#add();
        this.#options.onLost();
      } else if (Number(ownHeartbeats) <= this.#heartbeats) await this.#beginEpoch();
      else this.#heartbeats = Number(ownHeartbeats);
      const peers = rows.flatMap((row) => (row.id === null ? [] : [{ ...row, id: row.id }]));
      await this.#judgePeers(peers, askedAt, readAt);
    });
  }

  /** The database has an older heartbeat counter of this node: it was restored to an earlier state. */
  async #beginEpoch(): Promise<never> {
    await beginEpoch(this.#db);
    throw new Error('the database was restored to an earlier state');
  }

  /** Runs one statement on the node's row at a time, so that each sees the result of the previous one. */
  async #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => {});
    await turn;
  }

  async #add(): Promise<void> {
    const { rows } = await sql<{ heartbeats: string }>`
      insert into nodes (id, host, process, alive_until, heartbeats, name, generation)
      values (${this.id}, ${place.host}, ${place.process}, ${aliveUntil},
        -- The counter starts at random. A node that recorded the old counter as silent must not confuse it with this one.
        ${this.#heartbeats + 1}::bigint + floor(random() * 1000000000)::bigint, ${this.#options.name}, ${generation})
      returning heartbeats`.execute(this.#db);
    this.#heartbeats = Number(rows[0]?.heartbeats);
  }

  /** Records silent nodes. Removes dead ones, and nodes of this machine whose process is gone. */
  async #judgePeers(peers: readonly PeerRow[], askedAt: number, readAt: number): Promise<void> {
    const observed = this.#peers.observe(peers, askedAt, readAt);
    const dead = new Map([...observed.dead, ...peers.filter(isGone)].map((peer) => [peer.id, peer]));
    this.hasPeers = peers.length > dead.size;
    await removeDeadNodes(this.#db, [...dead.values()]);
    const silent = observed.silent.filter((peer) => !peer.is_recorded_silent && !dead.has(peer.id));
    await recordSilentNodes(this.#db, silent);
  }
}

const aliveUntil = sql`now() + make_interval(secs => ${aliveSeconds})`;

interface PeerRow extends Peer {
  host: string;
  process: string;
  /** Null if it was never recorded. */
  is_recorded_silent: boolean | null;
}

interface HeartbeatRow extends Omit<PeerRow, 'id'> {
  /** Null if there is no other node. */
  id: string | null;
  /** Null if another node removed this one. */
  own_heartbeats: string | null;
  epoch: string;
  now: number;
}

/**
 * Records nodes whose heartbeat counter has not changed for `silentNodeAfterMs`. A node with a heartbeat since then is not
 * recorded. Nothing waits for a node's row that is locked.
 */
async function recordSilentNodes(db: Database, nodes: readonly Peer[]): Promise<void> {
  if (nodes.length === 0) return;
  await sql`
    update nodes set silent_heartbeats = heartbeats, silent_epoch = current_epoch()
    where id in (
      select nodes.id from nodes
      join unnest(
        ${nodes.map(({ id }) => id)}::bigint[], ${nodes.map(({ heartbeats }) => heartbeats)}::bigint[]
      ) as given (id, heartbeats) on nodes.id = given.id and nodes.heartbeats = given.heartbeats
      for no key update of nodes skip locked)`.execute(db);
}

/**
 * Removes dead nodes and releases their lanes. A node with a heartbeat since then is not removed.
 * @param nodes with the heartbeat counter last seen; null to remove a node whatever its counter
 */
export async function removeDeadNodes(
  db: Database,
  nodes: readonly { id: string; heartbeats: string | null }[],
): Promise<void> {
  if (nodes.length === 0) return;
  await db.transaction().execute(async (tx) => {
    // Only the transaction that deletes the row releases the lanes.
    const { rows: gone } = await sql<{ id: string }>`
      delete from nodes using unnest(
        ${nodes.map(({ id }) => id)}::bigint[], ${nodes.map(({ heartbeats }) => heartbeats)}::bigint[]
      ) as given (id, heartbeats)
      where nodes.id = given.id and nodes.heartbeats = coalesce(given.heartbeats, nodes.heartbeats)
      returning nodes.id`.execute(tx);
    const ids = gone.map(({ id }) => id);
    await abandonLanes(tx, ids);
    await releaseLeasesOf(tx, ids);
  });
}

/**
 * Identifies this process: the machine since its last boot and its pid namespace, and the process id with its start
 * time.
 */
const place = { host: readHost(), process: `${process.pid} ${readStartTime(process.pid)}` };

function readHost(): string {
  try {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return `${hostname()} ${boot} ${readlinkSync('/proc/self/ns/pid')}`;
  } catch {
    // Systems other than Linux cannot check processes. There, dead nodes are found by their heartbeat.
    return `${hostname()} ${randomBytes(8).toString('hex')}`;
  }
}

/** The start time distinguishes processes that have the same id. */
function readStartTime(pid: number): string {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
  } catch {
    return '';
  }
}

/** Whether the node ran on this machine and its process has ended. */
export function isGone({ host, process }: { host: string; process: string }): boolean {
  return host === place.host && !isRunning(process);
}

function isRunning(processId: string): boolean {
  const [pid = '', startTime] = processId.split(' ');
  return existsSync(`/proc/${pid}`) && readStartTime(Number(pid)) === startTime;
}
