/**
 * Limits attempts to each host: how many are in flight, and how fast they start. A host that has never accepted a delivery
 * gets a small window, however many subscriptions name it. This is not stored: after a restart, a host is known again after its
 * first accepted delivery.
 *
 *   unknown (small window, low rate; one probe at a time after ten failures of an account)
 *   → accepted once → known (window grows with accepted deliveries, and shrinks with failures of lanes with recent success)
 *
 * Hosts are shared, so no account can block a host for others. At an unknown host an account gets half of the window, and its
 * failures pause only itself. At a known host an account gets what the others leave free. Lanes without recent success share half
 * of the window. Accounts take turns. Each app has a window and a rate of its own, and a window for all of its unknown hosts.
 */

import { TokenBucket } from '../../shared/token_bucket.ts';
import { circuitFailures, circuitPause } from '../sending/retry_schedule.ts';
import type { Quotas } from '../subscriptions/quotas.ts';
import type { Tenant } from './delivery_memory.ts';
import type { Lane } from './lane.ts';
import { RoundRobin } from './round_robin.ts';

/**
 * Seconds of its rate that may start at once after a quiet time: for unknown hosts, and for known hosts and apps.
 */
const burstSeconds = { unknown: 4, known: 0.1 };
/** An app may fill the windows of this many unknown hosts. */
const unknownHostsOfApp = 16;
/**
 * Total failures that pause an unknown host for all accounts. Ten failures of one account pause it for that account.
 */
const failuresOfAll = 100;
/** Milliseconds before a lane checks again whether its app has room. */
const appPauseMs = 250;
/** How long a host is remembered after its last attempt, and the interval between removals of old hosts. */
const rememberedMs = 3_600_000;
const forgetPauseMs = 60_000;
/** With more hosts than this, idle ones are forgotten after a minute. */
const remembered = 50_000;

export type HostQuotas = Pick<
  Quotas,
  'attemptsPerHost' | 'attemptsPerUnknownHost' | 'unknownHostRate' | 'hostRate' | 'attemptsPerApp' | 'appRate'
>;

interface Failed {
  failures: number;
  pausedUntil: number;
}

interface Host {
  isKnown: boolean;
  window: number;
  inFlight: number;
  /** Attempts in flight of lanes without recent success. */
  unproven: number;
  ofTenants: Map<Tenant, number>;
  /** Failures while the host is unknown: of all accounts, and by account. */
  failed: Failed;
  failedOf: Map<string, Failed>;
  rate: TokenBucket;
  unknownRate: TokenBucket;
  /** Lanes that wait for room. */
  waiting: RoundRobin;
  usedAt: number;
}

interface App {
  inFlight: number;
  /** Attempts in flight to unknown hosts. */
  unknown: number;
  rate: TokenBucket;
  usedAt: number;
}

/** What an attempt occupies from its start to its end. */
export interface HostSlot {
  readonly host: Host;
  readonly app: App;
  readonly tenant: Tenant;
  readonly wasProven: boolean;
  readonly wasUnknown: boolean;
}

export class HostLimits {
  readonly #quotas: HostQuotas;
  readonly #hosts = new Map<string, Host>();
  readonly #apps = new Map<string, App>();
  /** Hosts with waiting lanes. */
  readonly #crowded = new Set<Host>();
  #forgotAt = 0;

  constructor(quotas: HostQuotas) {
    this.#quotas = quotas;
  }

  /**
   * Whether the limits refuse an attempt of the lane.
   * @returns null if it may start; otherwise the time to wait until, in milliseconds on the monotonic clock, or 0 if
   *   `tick` or `end` will report room
   */
  refusal(lane: Lane, now: number): number | null {
    const app = this.#apps.get(appKeyOf(lane));
    if (app !== undefined && app.inFlight >= this.#quotas.attemptsPerApp) return now + appPauseMs;
    const appAt = app?.rate.nextAt(now) ?? null;
    if (appAt !== null) return appAt;
    const host = this.#hostOf(lane.template.origin, now);
    return host.isKnown
      ? this.#refusalOfKnown(host, lane, now)
      : this.#refusalOfUnknown(host, lane, app, now);
  }

  #refusalOfKnown(host: Host, lane: Lane, now: number): number | null {
    const least = this.#quotas.attemptsPerUnknownHost;
    const ofTenant = host.ofTenants.get(lane.tenant) ?? 0;
    const mayStart =
      host.inFlight < host.window &&
      (lane.isProven || host.unproven < Math.max(least, host.window / 2)) &&
      ofTenant < Math.max(least, host.window - host.inFlight);
    return mayStart ? host.rate.nextAt(now) : this.#wait(host, lane);
  }

  #refusalOfUnknown(host: Host, lane: Lane, app: App | undefined, now: number): number | null {
    const { attemptsPerUnknownHost } = this.#quotas;
    const failed = host.failedOf.get(lane.tenant.key);
    const pausedUntil = Math.max(host.failed.pausedUntil, failed?.pausedUntil ?? 0);
    if (pausedUntil > now && !lane.wasAccepted) return pausedUntil;
    if ((app?.unknown ?? 0) >= attemptsPerUnknownHost * unknownHostsOfApp) return now + appPauseMs;
    // One probe at a time while the account only fails.
    const mayHave = circuitPause(failed?.failures ?? 0) > 0 ? 1 : Math.ceil(attemptsPerUnknownHost / 2);
    const ofTenant = host.ofTenants.get(lane.tenant) ?? 0;
    if (host.inFlight >= attemptsPerUnknownHost || ofTenant >= mayHave) return this.#wait(host, lane);
    return host.unknownRate.nextAt(now);
  }

  #wait(host: Host, lane: Lane): number {
    host.waiting.add(lane);
    this.#crowded.add(host);
    return 0;
  }

  /** Occupies a slot. Call it only if `refusal` returned null. */
  begin(lane: Lane, now: number): HostSlot {
    const host = this.#hostOf(lane.template.origin, now);
    const appKey = appKeyOf(lane);
    const app = this.#appOf(appKey, now);
    const { tenant, isProven: wasProven } = lane;
    const wasUnknown = !host.isKnown;
    host.inFlight += 1;
    host.usedAt = now;
    if (!wasProven) host.unproven += 1;
    host.ofTenants.set(tenant, (host.ofTenants.get(tenant) ?? 0) + 1);
    app.inFlight += 1;
    app.usedAt = now;
    app.rate.take();
    if (wasUnknown) {
      host.unknownRate.take();
      app.unknown += 1;
    } else host.rate.take();
    return { host, app, tenant, wasProven, wasUnknown };
  }

  /** @param isAccepted null if no byte was sent @param onRoom called for lanes that may start now */
  end(slot: HostSlot, isAccepted: boolean | null, now: number, onRoom: (lane: Lane) => void): void {
    const { host, app, tenant, wasProven, wasUnknown } = slot;
    host.inFlight -= 1;
    if (!wasProven) host.unproven -= 1;
    const left = (host.ofTenants.get(tenant) ?? 1) - 1;
    if (left > 0) host.ofTenants.set(tenant, left);
    else host.ofTenants.delete(tenant);
    app.inFlight -= 1;
    if (wasUnknown) app.unknown -= 1;
    if (isAccepted !== null) this.#recordResult(slot, isAccepted, now);
    this.#wakeWaiting(host, onRoom);
  }

  #recordResult({ host, tenant, wasProven }: HostSlot, isAccepted: boolean, now: number): void {
    const { attemptsPerHost, attemptsPerUnknownHost } = this.#quotas;
    if (isAccepted) {
      host.isKnown = true;
      host.failedOf.clear();
      host.window = Math.min(host.window + 1, Math.max(attemptsPerHost, attemptsPerUnknownHost));
    } else if (host.isKnown) {
      if (wasProven) host.window = Math.max(host.window - 1, attemptsPerUnknownHost);
    } else {
      const failed = host.failedOf.get(tenant.key) ?? { failures: 0, pausedUntil: 0 };
      host.failedOf.set(tenant.key, failed);
      failed.failures += 1;
      failed.pausedUntil = now + circuitPause(failed.failures);
      host.failed.failures += 1;
      const beyond = host.failed.failures - failuresOfAll + circuitFailures;
      host.failed.pausedUntil = now + circuitPause(beyond);
    }
  }

  /** @param onRoom called for lanes that may start now */
  tick(now: number, onRoom: (lane: Lane) => void): void {
    for (const host of this.#crowded) this.#wakeWaiting(host, onRoom);
    if (now - this.#forgotAt < forgetPauseMs) return;
    this.#forgotAt = now;
    for (const [key, { inFlight, usedAt }] of this.#apps) {
      if (inFlight === 0 && now - usedAt > forgetPauseMs) this.#apps.delete(key);
    }
    const keepMs = this.#hosts.size > remembered ? forgetPauseMs : rememberedMs;
    for (const [origin, { inFlight, waiting, usedAt }] of this.#hosts) {
      if (inFlight === 0 && waiting.isEmpty && now - usedAt > keepMs) this.#hosts.delete(origin);
    }
  }

  #wakeWaiting(host: Host, onRoom: (lane: Lane) => void): void {
    let room = Math.max(host.window - host.inFlight, 0);
    while (room > 0 && !host.waiting.isEmpty) {
      room -= 1;
      onRoom(host.waiting.take(() => true) as Lane);
    }
    if (host.waiting.isEmpty) this.#crowded.delete(host);
  }

  #appOf(key: string, now: number): App {
    let app = this.#apps.get(key);
    if (app === undefined) {
      const { appRate } = this.#quotas;
      const rate = new TokenBucket(appRate, appRate * burstSeconds.known, now);
      app = { inFlight: 0, unknown: 0, rate, usedAt: now };
      this.#apps.set(key, app);
    }
    return app;
  }

  #hostOf(origin: string, now: number): Host {
    let host = this.#hosts.get(origin);
    if (host === undefined) {
      const { attemptsPerUnknownHost, unknownHostRate, hostRate } = this.#quotas;
      host = {
        isKnown: false,
        window: attemptsPerUnknownHost,
        inFlight: 0,
        unproven: 0,
        ofTenants: new Map(),
        failed: { failures: 0, pausedUntil: 0 },
        failedOf: new Map(),
        rate: new TokenBucket(hostRate, hostRate * burstSeconds.known, now),
        unknownRate: new TokenBucket(unknownHostRate, unknownHostRate * burstSeconds.unknown, now),
        waiting: new RoundRobin(),
        usedAt: now,
      };
      this.#hosts.set(origin, host);
    }
    return host;
  }
}

/** A user's own subscriptions belong to no app, so they count for the account. */
function appKeyOf({ subscription, tenant }: Lane): string {
  return subscription.clientId ?? tenant.key;
}
