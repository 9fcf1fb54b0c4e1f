/**
 * A round-robin queue: tenants take turns, and so do the apps of a tenant, and the lanes of an app. A tenant with ten thousand lanes gets as
 * many turns as a tenant with one.
 *
 * A tenant that had nothing queued for some rounds has a head start of as many turns. While tenants with a head start are queued,
 * they get every second turn. Without it, a tenant with few deliveries would wait behind the backlogs of all others (compare the
 * new flows of FQ-CoDel, RFC 8290, section 4.1.2).
 *
 *   queued with a head start → (head start used up) → queued → taken, back to the end → removed when it has no lane left
 *   taken while it may not continue → set aside → queued again
 */

import type { Tenant, TenantApp } from './delivery_memory.ts';
import type { Lane } from './lane.ts';

/** Maximum turns of a head start: as many as a lane may have attempts in flight. */
const headStart = 32;

const always = () => true;

interface Queued {
  /** The app whose turn is next, and its lanes. Without lanes, no app may continue. */
  app: TenantApp;
  lanes: Set<Lane>;
  /** Further apps of the tenant. Null until there is one, as for nearly all tenants. */
  more: Map<TenantApp, Set<Lane>> | null;
  /** Apps that may not continue now. Null if there is none. */
  aside: Map<TenantApp, Set<Lane>> | null;
  /** Turns left of its head start. */
  left: number;
}

/** A tenant that has left the queue. */
interface Gone {
  readonly left: number;
  /** The number of turns when it left. */
  readonly at: number;
  /** Turns of a round: one for each tenant in line. */
  readonly round: number;
}

export class RoundRobin {
  /** Tenants with a head start. */
  readonly #starting = new Map<Tenant, Queued>();
  readonly #inLine = new Map<Tenant, Queued>();
  /** Tenants that may not continue now. The event that they wait for puts them back into the queue. */
  readonly #setAside = new Map<Tenant, Queued>();
  /** What is queued with apps set aside. */
  readonly #partly = new Set<Queued>();
  readonly #gone = new WeakMap<Tenant, Gone>();
  /** Turns that tenants without a head start have had. */
  #turns = 0;
  /** Whether the last turn was of a tenant with a head start. */
  #wasStarting = false;

  /** Whether no tenant is queued. */
  get isEmpty(): boolean {
    return this.tenantCount === 0;
  }

  /** Whether no tenant is queued or set aside. */
  get isUnused(): boolean {
    return this.isEmpty && this.#setAside.size === 0;
  }

  /** The number of queued tenants. */
  get tenantCount(): number {
    return this.#starting.size + this.#inLine.size;
  }

  add(lane: Lane): void {
    const { tenant, app } = lane;
    const queued = this.#find(tenant);
    if (queued === undefined) {
      this.#queue(tenant, {
        app,
        lanes: new Set([lane]),
        more: null,
        aside: null,
        left: this.#leftOf(tenant),
      });
      return;
    }
    const aside = queued.aside?.get(app);
    if (aside !== undefined) {
      aside.add(lane);
      return;
    }
    // Of a tenant whose other apps may not continue, this one may.
    const isFirst = queued.lanes.size === 0;
    if (isFirst) {
      queued.app = app;
      queued.lanes = new Set([lane]);
    } else if (queued.app === app) {
      queued.lanes.add(lane);
    } else {
      queued.more ??= new Map();
      const lanes = queued.more.get(app);
      if (lanes === undefined) queued.more.set(app, new Set([lane]));
      else lanes.add(lane);
    }
    if (isFirst && this.#setAside.delete(tenant)) this.#queue(tenant, queued);
  }

  delete(lane: Lane): void {
    const { tenant, app } = lane;
    const queued = this.#find(tenant);
    if (queued === undefined) return;
    if (queued.app === app && queued.lanes.delete(lane) && queued.lanes.size === 0) advance(queued);
    for (const apps of [queued.more, queued.aside]) {
      const lanes = apps?.get(app);
      if (lanes?.delete(lane) && lanes.size === 0) apps?.delete(app);
    }
    if (queued.aside?.size === 0) this.#restore(queued);
    if (queued.lanes.size > 0 || queued.aside !== null) return;
    for (const tenants of [this.#starting, this.#inLine, this.#setAside]) tenants.delete(tenant);
    this.#leave(tenant, queued);
  }

  /**
   * Takes the next lane of the first tenant that may continue. Sets the tenants before it aside.
   * @param mayContinueFor sets apps of a tenant aside
   */
  take(
    mayContinue: (tenant: Tenant) => boolean,
    mayContinueFor: (app: TenantApp) => boolean = always,
  ): Lane | undefined {
    const [first, second] = this.#wasStarting
      ? [this.#inLine, this.#starting]
      : [this.#starting, this.#inLine];
    return (
      this.#takeFrom(first, mayContinue, mayContinueFor) ??
      this.#takeFrom(second, mayContinue, mayContinueFor)
    );
  }

  /** Puts a tenant that was set aside, or whose apps were, back into the queue. */
  requeue(tenant: Tenant): void {
    const queued = this.#find(tenant);
    if (queued === undefined) return;
    this.#restore(queued);
    if (this.#setAside.delete(tenant)) this.#queue(tenant, queued);
  }

  requeueAll(): void {
    for (const queued of [...this.#partly]) this.#restore(queued);
    for (const [tenant, queued] of this.#setAside) this.#queue(tenant, queued);
    this.#setAside.clear();
  }

  #find(tenant: Tenant): Queued | undefined {
    return this.#starting.get(tenant) ?? this.#inLine.get(tenant) ?? this.#setAside.get(tenant);
  }

  #restore(queued: Queued): void {
    if (queued.aside === null) return;
    queued.more ??= new Map();
    for (const [app, lanes] of queued.aside) queued.more.set(app, lanes);
    queued.aside = null;
    this.#partly.delete(queued);
    if (queued.lanes.size === 0) advance(queued);
  }

  #takeFrom(
    tenants: Map<Tenant, Queued>,
    mayContinue: (tenant: Tenant) => boolean,
    mayContinueFor: (app: TenantApp) => boolean,
  ): Lane | undefined {
    for (const [tenant, queued] of tenants) {
      tenants.delete(tenant);
      const lane = mayContinue(tenant) ? this.#takeOf(queued, mayContinueFor) : undefined;
      if (lane === undefined) {
        this.#setAside.set(tenant, queued);
        continue;
      }
      this.#wasStarting = tenants === this.#starting;
      if (this.#wasStarting) queued.left -= 1;
      else this.#turns += 1;
      if (queued.lanes.size > 0) this.#queue(tenant, queued);
      else if (queued.aside !== null) this.#setAside.set(tenant, queued);
      else this.#leave(tenant, queued);
      return lane;
    }
    return undefined;
  }

  /** Takes a lane of the first app that may continue, which then comes after the others. Sets the apps before it aside. */
  #takeOf(queued: Queued, mayContinueFor: (app: TenantApp) => boolean): Lane | undefined {
    while (queued.lanes.size > 0 && !mayContinueFor(queued.app)) {
      queued.aside ??= new Map();
      queued.aside.set(queued.app, queued.lanes);
      this.#partly.add(queued);
      queued.lanes = new Set();
      advance(queued);
    }
    const { app, lanes } = queued;
    const lane = lanes.values().next().value;
    if (lane === undefined) return undefined;
    lanes.delete(lane);
    if (queued.more !== null && advance(queued) && lanes.size > 0) queued.more.set(app, lanes);
    return lane;
  }

  /** Each round without the tenant gives it one more turn of a head start. */
  #leftOf(tenant: Tenant): number {
    const gone = this.#gone.get(tenant);
    if (gone === undefined) return headStart;
    return Math.min(headStart, gone.left + Math.floor((this.#turns - gone.at) / gone.round));
  }

  #queue(tenant: Tenant, queued: Queued): void {
    (queued.left > 0 ? this.#starting : this.#inLine).set(tenant, queued);
  }

  #leave(tenant: Tenant, { left }: Queued): void {
    this.#gone.set(tenant, { left, at: this.#turns, round: Math.max(1, this.#inLine.size) });
  }
}

/** The next app comes first. @returns false if there is none */
function advance(queued: Queued): boolean {
  const next = queued.more?.entries().next().value;
  if (next === undefined) return false;
  const [app, lanes] = next;
  queued.more?.delete(app);
  queued.app = app;
  queued.lanes = lanes;
  return true;
}
