/**
 * A window: how many attempts may be in flight at one place, and how fast they may start there. A place is whatever attempts have in
 * common: the node, an app, a host, an address. Tenants share each window by the same rules (README.md, "Who shares what"):
 *
 * - A tenant gets as much as the others leave free, without the reserve. So one tenant alone gets at most half, and n tenants get
 *   1/(n + 1) each as their attempts end.
 * - A tenant with nothing in flight in the window may use the reserve for its first attempt.
 * - Lanes without recent success ("unproven") share a part of the window by the same rules. The rest is for proven lanes.
 *
 *   refused → waiting, by turns of the tenants → a place or a start is free → offered to the next tenant that may have it
 */

import { isFree } from '../../shared/share.ts';
import type { TokenBucket } from '../../shared/token_bucket.ts';
import type { Tenant } from './delivery_memory.ts';
import type { Lane } from './lane.ts';
import { RoundRobin } from './round_robin.ts';

/** What a tenant has in flight in a window. */
interface Share {
  all: number;
  unproven: number;
}

/** What wants a place, or has one. */
interface Applicant {
  readonly tenant: Tenant;
  readonly isProven: boolean;
}

export class Window {
  /** Maximum attempts in flight, and maximum attempts of unproven lanes. */
  size: number;
  unprovenSize: number;
  /** How fast attempts may start; null for no limit. */
  rate: TokenBucket | null;
  inFlight = 0;
  #unproven = 0;
  readonly #shares = new Map<Tenant, Share>();
  /** Lanes that wait for room: proven ones, and the others. */
  #proven: RoundRobin | null = null;
  #waiting: RoundRobin | null = null;
  /** Whether the last lane that was offered room came from the proven ones. */
  #wasProven = false;

  constructor(size: number, unprovenSize: number, rate: TokenBucket | null = null) {
    this.size = size;
    this.unprovenSize = unprovenSize;
    this.rate = rate;
  }

  get hasWaiting(): boolean {
    return this.#proven !== null || this.#waiting !== null;
  }

  get isIdle(): boolean {
    return this.inFlight === 0 && !this.hasWaiting;
  }

  /** What the tenant has in flight here. */
  inFlightOf(tenant: Tenant): number {
    return this.#shares.get(tenant)?.all ?? 0;
  }

  /** Whether the lane may start an attempt. */
  admits({ tenant, isProven }: Applicant, now: number): boolean {
    return this.#hasRoomFor(tenant, isProven) && (this.rate === null || this.rate.nextAt(now) === null);
  }

  /** Occupies a place. Call it only if the window `admits` the lane. */
  take({ tenant, isProven }: Applicant): void {
    let share = this.#shares.get(tenant);
    if (share === undefined) {
      share = { all: 0, unproven: 0 };
      this.#shares.set(tenant, share);
    }
    share.all += 1;
    this.inFlight += 1;
    if (!isProven) {
      share.unproven += 1;
      this.#unproven += 1;
    }
    this.rate?.take();
  }

  /** Frees a place. Call it with what `take` was called with. */
  release({ tenant, isProven }: Applicant): void {
    const share = this.#shares.get(tenant) as Share;
    share.all -= 1;
    this.inFlight -= 1;
    if (!isProven) {
      share.unproven -= 1;
      this.#unproven -= 1;
    }
    if (share.all === 0) this.#shares.delete(tenant);
    this.#proven?.requeue(tenant);
    this.#waiting?.requeue(tenant);
  }

  /** The lane waits for room. */
  wait(lane: Lane): void {
    if (lane.isProven) {
      this.#proven ??= new RoundRobin();
      this.#proven.add(lane);
    } else {
      this.#waiting ??= new RoundRobin();
      this.#waiting.add(lane);
    }
  }

  /**
   * Offers what is free to waiting lanes, proven and unproven ones by turns.
   * @param most maximum lanes @param onRoom called for each lane that may start
   */
  offer(now: number, most: number, onRoom: (lane: Lane) => void): void {
    let room = Math.min(most, this.size - this.inFlight);
    if (this.rate !== null && room > 0) room = Math.min(room, this.rate.available(now));
    while (room > 0) {
      const lane = this.#next(!this.#wasProven) ?? this.#next(this.#wasProven);
      if (lane === undefined) break;
      room -= 1;
      onRoom(lane);
    }
    if (this.#proven?.isUnused) this.#proven = null;
    if (this.#waiting?.isUnused) this.#waiting = null;
  }

  /** Lets every waiting tenant have a turn again, because others may have left room. */
  requeueAll(): void {
    this.#proven?.requeueAll();
    this.#waiting?.requeueAll();
  }

  #next(isProven: boolean): Lane | undefined {
    // Nobody finds room. Who looked for it would be set aside, and of what ends first only its own tenant would get the place.
    if (!isProven && this.#unproven >= this.unprovenSize) return undefined;
    const queue = isProven ? this.#proven : this.#waiting;
    const lane = queue?.take((tenant) => this.#hasRoomFor(tenant, isProven));
    if (lane !== undefined) this.#wasProven = isProven;
    return lane;
  }

  #hasRoomFor(tenant: Tenant, isProven: boolean): boolean {
    const share = this.#shares.get(tenant);
    if (!isFree(this.size, this.inFlight, share?.all ?? 0)) return false;
    return isProven || isFree(this.unprovenSize, this.#unproven, share?.unproven ?? 0);
  }
}
