/**
 * Hosts: how many attempts are in flight to each host, and how fast they follow one another. A host that has never
 * accepted anything was perhaps never asked: it gets a small window, however many subscriptions name it. Learnt anew
 * after a restart, which a host that accepts does within its first deliveries.
 *
 *   unknown (small window, low rate; after ten failures of an account one probe at a time) → accepted once → known (the
 *   window grows with what it accepts, and shrinks with failures of subscriptions that it accepted before)
 *
 * Hosts are shared, so no account closes one for the others: at an unknown host an account gets half of the window, and
 * its failures pause itself alone. At a known host an account gets what the others leave, and subscriptions that were not
 * accepted lately share half of the window. Accounts take turns. Each app has a window and a rate as well, and a window for
 * all of its unknown hosts.
 */

import { circuitFailures, circuitPause } from '../sending/retry_schedule.ts';
import type { Quotas } from '../subscriptions/quotas.ts';
import type { Lane } from './lane.ts';
import { RoundRobin } from './round_robin.ts';
import { TokenBucket } from './token_bucket.ts';
import type { Tenant } from './waiting_memory.ts';

/** Seconds of its rate that an unknown host gets at once, after a time without attempts; and that others and apps get. */
const burstSeconds = { unknown: 4, known: 0.1 };
/** Windows of unknown hosts that an app fills at most. */
const unknownHostsOfApp = 16;
/** Failures of all accounts that pause an unknown host for all of them, instead of ten of one account. */
const failuresOfAll = 100;
/** Milliseconds after which a lane looks again whether its app has room. */
const appPauseMs = 250;
/** Milliseconds that a host is remembered after its last attempt, and between looks for hosts to forget. */
const rememberedMs = 3_600_000;
const forgetPauseMs = 60_000;
/** Hosts that are remembered although nothing is in flight to them; past that, for a minute. */
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
  /** Of lanes that were not accepted lately. */
  unproven: number;
  ofTenants: Map<Tenant, number>;
  /** While it is unknown: of all accounts, and of each by its key. */
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
  /** To unknown hosts. */
  unknown: number;
  rate: TokenBucket;
  usedAt: number;
}

/** What an attempt takes up, from its start to its end. */
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
  /** Hosts that lanes wait for. */
  readonly #crowded = new Set<Host>();
  #forgotAt = 0;

  constructor(quotas: HostQuotas) {
    this.#quotas = quotas;
  }

  /**
   * Whether a lane may start an attempt; one that may not is told of by `tick` or `end`, or waits for a time.
   * @returns null where it may; milliseconds of the process's clock to wait until; 0 until there is room
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

  /** Call only where nothing is refused. */
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

  /**
   * @param isAccepted null where nothing was sent
   * @param onRoom told of lanes that may start now
   */
  end(slot: HostSlot, isAccepted: boolean | null, now: number, onRoom: (lane: Lane) => void): void {
    const { host, app, tenant, wasProven, wasUnknown } = slot;
    host.inFlight -= 1;
    if (!wasProven) host.unproven -= 1;
    const left = (host.ofTenants.get(tenant) ?? 1) - 1;
    if (left > 0) host.ofTenants.set(tenant, left);
    else host.ofTenants.delete(tenant);
    app.inFlight -= 1;
    if (wasUnknown) app.unknown -= 1;
    if (isAccepted !== null) this.#judge(slot, isAccepted, now);
    this.#wakeWaiting(host, onRoom);
  }

  #judge({ host, tenant, wasProven }: HostSlot, isAccepted: boolean, now: number): void {
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

  /** @param onRoom told of lanes that may start now */
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

/** Subscriptions that a user has of their own are no app's. */
function appKeyOf({ subscription, tenant }: Lane): string {
  return subscription.clientId ?? tenant.key;
}
