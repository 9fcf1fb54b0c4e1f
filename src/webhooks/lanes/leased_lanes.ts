/**
 * The lanes that this node holds, by what each of them could do next, and what all of them together have in memory:
 * bounded, whatever waits in the database.
 *
 *   a lane is   ready: may have something to start        sleeping: waits for a pause or for its rate
 *               readable: has more in the database          retrying: has retries to come
 *   none of them or several; which of it is true is looked at when its turn has come
 *
 * A tenant may take of each resource at most what nobody uses (and its quota): one alone gets half, n of them get
 * 1/(n + 1) each, so that there is room for one more at any time.
 */

import { defaultQuotas, type Quotas } from '../subscriptions/quotas.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import type { Lane } from './lane.ts';
import { RoundRobin } from './round_robin.ts';
import { Tenant, WaitingMemory } from './waiting_memory.ts';

/** Deliveries in memory at most. Past it a lane gets one delivery at a time. */
const waitingMax = 40_000;
/** What a lane with nothing in memory may get, past what its tenant may take: so many times that. */
const emptyLaneFactor = 2;

export type LaneQuotas = Pick<
  Quotas,
  'lanes' | 'lanesPerAccount' | 'waitingBytes' | 'waitingBytesPerAccount'
>;

export class LeasedLanes {
  readonly quotas: LaneQuotas;
  readonly memory = new WaitingMemory();
  readonly #byId = new Map<number, Lane>();
  readonly #tenants = new Map<string, Tenant>();
  /** In turns. */
  readonly ready = new RoundRobin();
  readonly sleeping = new Set<Lane>();
  readonly readable = new RoundRobin();
  readonly retrying = new Set<Lane>();

  constructor(quotas: LaneQuotas = defaultQuotas) {
    this.quotas = quotas;
  }

  get size(): number {
    return this.#byId.size;
  }

  /** Lanes that can still be held. */
  get room(): number {
    return this.quotas.lanes - this.#byId.size;
  }

  get(id: number): Lane | undefined {
    return this.#byId.get(id);
  }

  has(id: number): boolean {
    return this.#byId.has(id);
  }

  ids(): number[] {
    return [...this.#byId.keys()];
  }

  all(): IterableIterator<Lane> {
    return this.#byId.values();
  }

  /** Whose memory the deliveries of a subscription use. */
  tenantOf({ accountId, clientId }: Pick<Subscription, 'accountId' | 'clientId'>): Tenant {
    const key = accountId ?? `client:${clientId}`;
    let tenant = this.#tenants.get(key);
    if (tenant === undefined) {
      tenant = new Tenant(key, this.memory);
      this.#tenants.set(key, tenant);
    }
    return tenant;
  }

  /** Whether one more lane of the tenant can be held. */
  mayHold({ lanes }: Tenant): boolean {
    return lanes < Math.min(this.quotas.lanesPerAccount, this.room);
  }

  add(lane: Lane): void {
    this.#byId.set(lane.id, lane);
    lane.tenant.lanes += 1;
  }

  remove(lane: Lane): void {
    if (!this.#byId.delete(lane.id)) return;
    for (const set of [this.ready, this.sleeping, this.readable, this.retrying]) set.delete(lane);
    lane.tenant.lanes -= 1;
    this.forgetTenant(lane.tenant);
  }

  /** Forgets a tenant that nothing refers to. */
  forgetTenant(tenant: Tenant): void {
    if (tenant.isUnused && this.#tenants.get(tenant.key) === tenant) this.#tenants.delete(tenant.key);
  }

  /** Something about a lane has changed: it is put where it may be wanted. */
  reschedule(lane: Lane): void {
    if (lane.isLost) return;
    if (lane.waitingCount > 0) this.ready.add(lane);
    if (lane.wantsMore) this.readable.add(lane);
    if (Number.isFinite(lane.retryAt)) this.retrying.add(lane);
  }

  /** Whether nothing more may be read for any lane. */
  get isFull(): boolean {
    return this.memory.bytes >= this.quotas.waitingBytes;
  }

  /** Whether a lane of the tenant gets one delivery at a time. */
  isCrowded(tenant: Tenant): boolean {
    return tenant.waiting >= waitingMax - this.memory.waiting || tenant.bytes >= this.#bytesFor(0);
  }

  /** Whether anything may be read for lanes of the tenant. */
  mayRead({ bytes }: Tenant): boolean {
    return bytes < this.#bytesFor(0) * emptyLaneFactor;
  }

  /** Where memory is short, lanes that have nothing in memory still get something: no lane is kept out by its siblings. */
  hasSpace(lane: Lane): boolean {
    if (!this.isCrowded(lane.tenant)) return true;
    return isEmptyLane(lane) && this.mayRead(lane.tenant);
  }

  /** For one read: which of the deliveries that it found are taken into memory. */
  admission(): Admission {
    return new Admission((planned) => this.#bytesFor(planned));
  }

  /** Bytes that each tenant may have in memory. @param planned bytes that are about to be taken */
  #bytesFor(planned: number): number {
    const { waitingBytes, waitingBytesPerAccount } = this.quotas;
    return Math.min(waitingBytesPerAccount, Math.max(waitingBytes - this.memory.bytes - planned, 0));
  }
}

function isEmptyLane(lane: Lane): boolean {
  return lane.waitingCount === 0 && lane.inFlight === 0;
}

/** Says of each delivery of a read, in order, whether its body may be taken into memory. */
export class Admission {
  readonly #bytesFor: (planned: number) => number;
  readonly #planned = new Map<Tenant, { positions: Set<number>; bytes: number }>();
  readonly #served = new Set<Lane>();
  #bytes = 0;

  constructor(bytesFor: (planned: number) => number) {
    this.#bytesFor = bytesFor;
  }

  /** @param position the event's @param bytes of its body */
  admits(lane: Lane, position: number, bytes: number): boolean {
    const { tenant } = lane;
    const planned = this.#planned.get(tenant) ?? { positions: new Set(), bytes: 0 };
    if (tenant.has(position) || planned.positions.has(position)) return true;
    const mayHave =
      this.#bytesFor(this.#bytes) * (isEmptyLane(lane) && !this.#served.has(lane) ? emptyLaneFactor : 1);
    if (tenant.bytes + planned.bytes >= mayHave) return false;
    this.#served.add(lane);
    this.#planned.set(tenant, planned);
    planned.positions.add(position);
    planned.bytes += bytes;
    this.#bytes += bytes;
    return true;
  }
}
