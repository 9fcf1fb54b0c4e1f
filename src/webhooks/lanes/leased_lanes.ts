/**
 * The lanes that this node leases, indexed by what each could do next, and the limits of what they have in memory together.
 * Memory use does not depend on the backlog in the database.
 *
 *   ready     may have an attempt to start         sleeping   waits for the end of a pause or for its rate limit
 *   readable  has more deliveries in the database  retrying   waits until a retry is due
 *                                                  due        has a retry to read
 *
 * A lane can be in any number of these sets. Whether it still belongs there is checked when its turn comes.
 *
 * A tenant may take as much of a resource as is still free, up to its quota. So a single tenant gets half, n tenants get 1/(n +
 * 1) each. Of the leases and of the bytes in memory, a part is reserved for tenants that have none, or few bytes (shared/share.ts): a single
 * body may take more than what is still free. Of what a tenant may have in memory, a part is reserved for its apps that have few bytes.
 */

import { isFree, reserveOf } from '../../shared/share.ts';
import { tenantName } from '../../shared/tenant.ts';
import { defaultQuotas, type Quotas } from '../subscriptions/quotas.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import { DeliveryMemory, Tenant, type TenantApp } from './delivery_memory.ts';
import type { Lane } from './lane.ts';
import { RoundRobin } from './round_robin.ts';
import { Sleepers } from './sleepers.ts';

/** Maximum deliveries in memory. Above it, a lane gets one delivery at a time. */
const waitingMax = 40_000;
/**
 * With more deliveries in memory than this, a lane gets only a few more: the lanes have about a second of work. The rest, up to
 * the maximum, is for other lanes. A thousand deliveries with small bodies take some 2 MiB. A tenant with fewer than the second number is not meant.
 */
const ampleMin = 10_000;
const ampleOfTenantMin = 2_000;
const fewPerLane = 16;
/** Deliveries in memory, or soon, that last for some tenths of a second. */
const plentyMin = 4_000;
/** A lane with nothing in memory may exceed its tenant's share by this factor. */
const emptyLaneFactor = 2;
/** Who has less than this part of the bytes may use the reserve. Much less than a large body, and enough for many small ones. */
const fewBytesPart = 1_024;

export type LaneQuotas = Pick<
  Quotas,
  'lanes' | 'lanesPerAccount' | 'waitingBytes' | 'waitingBytesPerAccount'
>;

export class LeasedLanes {
  readonly quotas: LaneQuotas;
  readonly memory = new DeliveryMemory();
  readonly #byId = new Map<number, Lane>();
  readonly #tenants = new Map<string, Tenant>();
  /** Tenants take turns. */
  readonly ready = new RoundRobin();
  readonly sleeping = new Sleepers();
  readonly readable = new RoundRobin();
  readonly retrying = new Sleepers();
  readonly due = new RoundRobin();

  constructor(quotas: LaneQuotas = defaultQuotas) {
    this.quotas = quotas;
  }

  get size(): number {
    return this.#byId.size;
  }

  /** Number of lanes that this node can still lease. */
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

  /**
   * The tenant that a subscription's deliveries count for.
   * @param creatorId who created the app, if the subscription is its own
   */
  tenantOf(
    { accountId, clientId }: Pick<Subscription, 'accountId' | 'clientId'>,
    creatorId: string | null,
  ): Tenant {
    const key = tenantName({ accountId, creatorId, clientId });
    let tenant = this.#tenants.get(key);
    if (tenant === undefined) {
      tenant = new Tenant(key, this.memory);
      this.#tenants.set(key, tenant);
    }
    return tenant;
  }

  /** Whether the tenant may lease one more lane. The reserve is for the first lane of others, in whatever order tenants come. */
  mayHold({ lanes }: Tenant): boolean {
    return lanes < this.quotas.lanesPerAccount && isFree(this.quotas.lanes, this.#byId.size, lanes);
  }

  /** Whether the tenant may lease no more lanes. It is remembered that it would like to. */
  refuses(tenant: Tenant): boolean {
    if (this.mayHold(tenant)) return false;
    tenant.refused = Math.min(tenant.refused + 1, tenant.lanes);
    return true;
  }

  /** The same for a tenant that may have no lane. */
  refusesNamed(name: string): boolean {
    const tenant = this.#tenants.get(name);
    return tenant !== undefined && this.refuses(tenant);
  }

  add(lane: Lane): void {
    this.#byId.set(lane.id, lane);
    lane.tenant.lanes += 1;
    lane.app.lanes += 1;
  }

  remove(lane: Lane): void {
    if (!this.#byId.delete(lane.id)) return;
    for (const set of [this.ready, this.sleeping, this.readable, this.retrying, this.due]) set.delete(lane);
    lane.tenant.lanes -= 1;
    lane.app.lanes -= 1;
    lane.tenant.forgetApp(lane.app);
    this.forgetTenant(lane.tenant);
  }

  /** Removes a tenant that nothing refers to. */
  forgetTenant(tenant: Tenant): void {
    if (tenant.isUnused && this.#tenants.get(tenant.key) === tenant) this.#tenants.delete(tenant.key);
  }

  /** Adds a changed lane to the sets that it may belong to. */
  reschedule(lane: Lane): void {
    if (lane.isLost) return;
    if (lane.waitingCount > 0 || lane.sendableCount > 0) this.ready.add(lane);
    if (lane.wantsMore) this.readable.add(lane);
    if (Number.isFinite(lane.retryAt)) this.retrying.add(lane, Math.max(lane.retryAt, lane.pausedUntil));
  }

  /** Whether there is enough to send for some tenths of a second. @param newLanes lanes that are being loaded, with a delivery at least */
  hasPlenty(newLanes: number): boolean {
    return this.memory.waiting + newLanes >= plentyMin;
  }

  /** Whether no more deliveries may be read for any lane. */
  get isFull(): boolean {
    return this.memory.bytes >= this.quotas.waitingBytes;
  }

  /** Whether each lane of the tenant gets a few deliveries. What others have in memory may not be able to start. */
  #hasAmple({ waiting }: Tenant): boolean {
    return this.memory.waiting >= ampleMin && waiting >= ampleOfTenantMin;
  }

  /** Whether each lane of the app gets one delivery at a time. */
  isCrowded(app: TenantApp): boolean {
    return app.tenant.waiting >= waitingMax - this.memory.waiting || !this.#mayAdd(app, nothing, 1);
  }

  /** Whether deliveries may be read for lanes of the tenant, at least for those of apps with few bytes. */
  mayRead({ bytes }: Tenant): boolean {
    return bytes < this.#limitOf(bytes, 0, emptyLaneFactor);
  }

  /** Whether deliveries may be read for the app's lanes. */
  mayReadFor(app: TenantApp): boolean {
    return this.#mayAdd(app, nothing, emptyLaneFactor);
  }

  /**
   * Whether the lane may get another delivery. If memory is short, a lane with nothing in memory still gets one. So the other
   * lanes of its app cannot starve it.
   */
  hasSpace(lane: Lane): boolean {
    if (!this.isCrowded(lane.app)) return !this.#hasAmple(lane.tenant) || lane.waitingCount < fewPerLane;
    return isEmptyLane(lane) && this.mayReadFor(lane.app);
  }

  /** Maximum deliveries that one read may add to a lane. */
  readMax({ app }: Lane): number {
    if (this.isCrowded(app)) return 1;
    return this.#hasAmple(app.tenant) ? fewPerLane : Number.POSITIVE_INFINITY;
  }

  /** Decides for one read which deliveries are taken into memory. */
  admission(): Admission {
    return new Admission((...share) => this.#mayAdd(...share));
  }

  /**
   * Whether an app of a tenant may have another body in memory.
   * @param planned bytes that are about to be added @param factor by which it may exceed the share of its tenant
   */
  #mayAdd(app: TenantApp, planned: PlannedBytes, factor: number): boolean {
    const own = app.tenant.bytes + planned.ofTenant;
    const limit = this.#limitOf(own, planned.ofAll, factor);
    if (own >= limit) return false;
    return app.bytes + planned.ofApp < this.#fewBytes || own < limit - reserveOf(limit);
  }

  /** Bytes up to which a tenant may have another body. @param own its bytes @param planned bytes of all tenants that are about to be added */
  #limitOf(own: number, planned: number, factor: number): number {
    const { waitingBytes, waitingBytesPerAccount } = this.quotas;
    const free = waitingBytes - this.memory.bytes - planned;
    if (own < this.#fewBytes) return free > 0 ? Number.POSITIVE_INFINITY : 0;
    return factor * Math.min(waitingBytesPerAccount, free - reserveOf(waitingBytes));
  }

  get #fewBytes(): number {
    return this.quotas.waitingBytes / fewBytesPart;
  }
}

/** Bytes of bodies that are about to be added. */
interface PlannedBytes {
  ofAll: number;
  ofTenant: number;
  ofApp: number;
}

const nothing: PlannedBytes = { ofAll: 0, ofTenant: 0, ofApp: 0 };

function isEmptyLane(lane: Lane): boolean {
  return lane.waitingCount === 0 && lane.inFlight === 0;
}

/** Decides for each delivery of a read, in order, whether its body may be taken into memory. */
export class Admission {
  readonly #mayAdd: (app: TenantApp, planned: PlannedBytes, factor: number) => boolean;
  readonly #planned = new Map<Tenant, { positions: Set<number>; bytes: number }>();
  readonly #ofApps = new Map<TenantApp, number>();
  readonly #served = new Set<Lane>();
  #bytes = 0;

  constructor(mayAdd: (app: TenantApp, planned: PlannedBytes, factor: number) => boolean) {
    this.#mayAdd = mayAdd;
  }

  /** @param position position of the event @param bytes size of its body */
  admits(lane: Lane, position: number, bytes: number): boolean {
    const { tenant, app } = lane;
    const planned = this.#planned.get(tenant) ?? { positions: new Set(), bytes: 0 };
    if (tenant.has(position) || planned.positions.has(position)) return true;
    const factor = isEmptyLane(lane) && !this.#served.has(lane) ? emptyLaneFactor : 1;
    const ofApp = this.#ofApps.get(app) ?? 0;
    if (!this.#mayAdd(app, { ofAll: this.#bytes, ofTenant: planned.bytes, ofApp }, factor)) return false;
    this.#served.add(lane);
    this.#planned.set(tenant, planned);
    planned.positions.add(position);
    planned.bytes += bytes;
    this.#ofApps.set(app, ofApp + bytes);
    this.#bytes += bytes;
    return true;
  }
}
