/**
 * The windows that an attempt needs a place in: of the node, of its app, of its host and of the host's address. Names are cheap, since
 * a wildcard record provides any number of hosts; addresses are not. An attempt starts when all of its windows have room. Otherwise its
 * lane waits for the first window that has none, and nothing of that wait belongs to an attempt.
 *
 *   lane refused → waiting for one window → offered room → places in all windows → in flight → places free
 */

import type { AddressGate } from '../sending/exchange.ts';
import type { Quotas } from '../subscriptions/quotas.ts';
import type { Tenant } from './delivery_memory.ts';
import { Destination, Host, knownBurstSeconds, rateOf } from './destination.ts';
import type { Lane } from './lane.ts';
import { Window } from './window.ts';

/** Maximum attempts in flight of a node, and maximum attempts in flight that started less than a second ago. */
const inFlightMax = 4_096;
const recentInFlightMax = 512;
const recentMs = 1_000;
/**
 * Maximum attempts in flight with a large body. What is sent of it can be a copy of its own, in CloudEvents or over TLS, and a subscriber that
 * hangs keeps it for as long as its attempt takes.
 */
const largeInFlightMax = 512;
/** An app may fill the windows of this many unknown hosts. */
const unknownHostsOfApp = 16;
/** An address may serve several hosts: it has this many times the limits of an unknown host, and of a known one. */
const unknownHostsOfAddress = 2;
const knownHostsOfAddress = 4;
/** How long what has no attempts is remembered, and the interval between removals. */
const rememberedMs = { app: 60_000, destination: 3_600_000 };
const forgetPauseMs = 60_000;
/** With more hosts or addresses than this, idle ones are forgotten after a minute: whoever has a name server can name any number of either. */
const remembered = 50_000;

export type WindowQuotas = Pick<
  Quotas,
  'attemptsPerHost' | 'attemptsPerUnknownHost' | 'unknownHostRate' | 'hostRate' | 'attemptsPerApp' | 'appRate'
>;

interface App {
  readonly window: Window;
  /** Attempts to unknown hosts. */
  readonly unknown: Window;
  usedAt: number;
}

interface Route {
  readonly app: App;
  readonly host: Host;
  /** Null if it is not known yet. */
  readonly address: Destination | null;
}

/** What an attempt occupies from its start to its end. */
export class Places implements AddressGate {
  readonly tenant: Tenant;
  readonly isProven: boolean;
  readonly app: App;
  readonly host: Host;
  /** Whether the host was unknown at the start. */
  readonly isUnknown: boolean;
  readonly isLarge: boolean;
  /** Null while no address has a place for the attempt. */
  address: Destination | null;
  readonly startedAt: number;
  readonly #windows: Windows;

  constructor(windows: Windows, lane: Lane, { app, host, address }: Route, isLarge: boolean, now: number) {
    this.#windows = windows;
    this.tenant = lane.tenant;
    this.isProven = lane.isProven;
    this.app = app;
    this.host = host;
    this.isUnknown = !host.isKnown;
    this.isLarge = isLarge;
    this.address = address;
    this.startedAt = now;
  }

  admit(key: string): boolean {
    return this.#windows.moveTo(this, key);
  }

  get keepsConnection(): boolean {
    return this.address?.isKnown === true;
  }
}

export class Windows {
  readonly #quotas: WindowQuotas;
  readonly #onRoom: (lane: Lane) => void;
  readonly #node = new Window(inFlightMax, (inFlightMax * 3) / 4);
  readonly #recentWindow = new Window(recentInFlightMax, (recentInFlightMax * 3) / 4);
  readonly #largeWindow = new Window(largeInFlightMax, (largeInFlightMax * 3) / 4);
  /** Attempts in flight that started less than a second ago, oldest first. */
  readonly #recent = new Set<Places>();
  readonly #apps = new Map<string, App>();
  readonly #hosts = new Map<string, Host>();
  /** By the key from `addressKey`. */
  readonly #addresses = new Map<string, Destination>();
  /** Windows with waiting lanes. */
  readonly #crowded = new Set<Window>();
  #forgotAt = 0;

  /** @param onRoom called for lanes that may start now */
  constructor(quotas: WindowQuotas, onRoom: (lane: Lane) => void) {
    this.#quotas = quotas;
    this.#onRoom = onRoom;
  }

  /** Attempts in flight. */
  get inFlight(): number {
    return this.#node.inFlight;
  }

  /** Whether the node has no room for any attempt. */
  get isFull(): boolean {
    return this.#node.inFlight >= this.#node.size || this.#recentWindow.inFlight >= this.#recentWindow.size;
  }

  /**
   * Occupies a place in every window of the lane.
   * @param isLarge whether the body is large
   * @returns null if one has no room: `onRoom` will be called for the lane, or it is paused now
   */
  enter(lane: Lane, now: number, isLarge = false): Places | null {
    const route = this.#findRoute(lane, now, isLarge);
    if (route === null) return null;
    const { app, host, address } = route;
    const places = new Places(this, lane, route, isLarge, now);
    this.#node.take(places);
    if (isLarge) this.#largeWindow.take(places);
    this.#recentWindow.take(places);
    this.#recent.add(places);
    app.window.take(places);
    if (places.isUnknown) app.unknown.take(places);
    host.window.take(places);
    address?.window.take(places);
    app.usedAt = now;
    host.usedAt = now;
    return places;
  }

  /** Whether `enter` would find a place now. If not, it may be tried again as after `enter`. */
  hasRoom(lane: Lane, now: number, isLarge = false): boolean {
    return this.#findRoute(lane, now, isLarge) !== null;
  }

  /** The windows of the lane. Null if one has no room, which the lane waits for then. */
  #findRoute(lane: Lane, now: number, isLarge: boolean): Route | null {
    const host = this.#hostOf(lane.template.origin, now);
    const pausedUntil = host.pausedUntil(lane);
    if (pausedUntil > now) {
      lane.pausedUntil = Math.max(lane.pausedUntil, pausedUntil);
      return null;
    }
    const app = this.#appOf(lane.subscription.clientId ?? lane.tenant.key, now);
    const address = host.addressKey === null ? null : this.#addressOf(host.addressKey, now);
    const route = { app, host, address };
    const crowded = this.#crowdedFor(lane, route, isLarge, now);
    if (crowded === null) return route;
    crowded.wait(lane);
    this.#crowded.add(crowded);
    return null;
  }

  /** The first window without room for the lane. */
  #crowdedFor(lane: Lane, { app, host, address }: Route, isLarge: boolean, now: number): Window | null {
    if (!this.#node.admits(lane, now)) return this.#node;
    if (!this.#recentWindow.admits(lane, now)) return this.#recentWindow;
    if (isLarge && !this.#largeWindow.admits(lane, now)) return this.#largeWindow;
    if (!app.window.admits(lane, now)) return app.window;
    if (!host.isKnown && !app.unknown.admits(lane, now)) return app.unknown;
    if (!host.window.admits(lane, now) || host.isProbing(lane)) return host.window;
    return address === null || address.window.admits(lane, now) ? null : address.window;
  }

  /**
   * The attempt is about to connect to an address, or has connected to it. The next attempts to its host wait for this address before
   * they start.
   * @returns whether the address has room
   */
  moveTo(places: Places, key: string): boolean {
    const now = performance.now();
    const address = this.#addressOf(key, now);
    if (places.address === address) return true;
    if (places.address !== null) this.#release(places.address.window, places, now);
    places.host.addressKey = key;
    const hasRoom = address.window.admits(places, now);
    if (hasRoom) address.window.take(places);
    places.address = hasRoom ? address : null;
    return hasRoom;
  }

  /** The attempt has ended, or waits for an access token. @param isAccepted null if nothing was sent, or it will be sent again */
  leave(places: Places, isAccepted: boolean | null, now: number): void {
    const { app, host, address, isUnknown, isProven, tenant } = places;
    if (isAccepted === true) {
      host.acceptOf(tenant.key, now);
      address?.accept(now);
    } else if (isAccepted === false) host.fail(tenant.key, isProven, now);
    if (this.#recent.delete(places)) this.#release(this.#recentWindow, places, now);
    this.#release(this.#node, places, now);
    if (places.isLarge) this.#release(this.#largeWindow, places, now);
    this.#release(app.window, places, now);
    if (isUnknown) this.#release(app.unknown, places, now);
    this.#release(host.window, places, now);
    host.usedAt = now;
    if (address === null) return;
    this.#release(address.window, places, now);
    address.usedAt = now;
  }

  #release(window: Window, places: Places, now: number): void {
    window.release(places);
    if (window.hasWaiting) window.offer(now, 1, this.#onRoom);
  }

  tick(now: number): void {
    // Attempts that take longer than a second make room for others.
    for (const places of this.#recent) {
      if (places.startedAt > now - recentMs) break;
      this.#recent.delete(places);
      this.#release(this.#recentWindow, places, now);
    }
    for (const window of this.#crowded) {
      window.requeueAll();
      window.offer(now, Number.POSITIVE_INFINITY, this.#onRoom);
      if (!window.hasWaiting) this.#crowded.delete(window);
    }
    if (now - this.#forgotAt < forgetPauseMs) return;
    this.#forgotAt = now;
    this.#forget(now);
  }

  #forget(now: number): void {
    for (const [key, { window, unknown, usedAt }] of this.#apps) {
      if (window.isIdle && unknown.isIdle && now - usedAt > rememberedMs.app) this.#apps.delete(key);
    }
    for (const destinations of [this.#hosts, this.#addresses]) {
      const keepMs = destinations.size > remembered ? forgetPauseMs : rememberedMs.destination;
      for (const [key, { window, usedAt }] of destinations) {
        if (window.isIdle && now - usedAt > keepMs) destinations.delete(key);
      }
    }
  }

  #appOf(key: string, now: number): App {
    let app = this.#apps.get(key);
    if (app === undefined) {
      const { attemptsPerApp, attemptsPerUnknownHost, appRate } = this.#quotas;
      const unknown = attemptsPerUnknownHost * unknownHostsOfApp;
      app = {
        window: new Window(
          attemptsPerApp,
          Math.ceil(attemptsPerApp / 2),
          rateOf(appRate, knownBurstSeconds, now),
        ),
        unknown: new Window(2 * unknown, unknown),
        usedAt: now,
      };
      this.#apps.set(key, app);
    }
    return app;
  }

  #hostOf(origin: string, now: number): Host {
    let host = this.#hosts.get(origin);
    if (host === undefined) {
      const { attemptsPerUnknownHost, attemptsPerHost, unknownHostRate, hostRate } = this.#quotas;
      host = new Host(
        {
          unknown: attemptsPerUnknownHost,
          known: attemptsPerHost,
          unknownRate: unknownHostRate,
          knownRate: hostRate,
        },
        now,
      );
      this.#hosts.set(origin, host);
    }
    return host;
  }

  #addressOf(key: string, now: number): Destination {
    let address = this.#addresses.get(key);
    if (address === undefined) {
      const { attemptsPerUnknownHost, attemptsPerHost, unknownHostRate } = this.#quotas;
      address = new Destination(
        {
          unknown: unknownHostsOfAddress * attemptsPerUnknownHost,
          known: knownHostsOfAddress * attemptsPerHost,
          unknownRate: unknownHostsOfAddress * unknownHostRate,
          knownRate: null,
        },
        now,
      );
      this.#addresses.set(key, address);
    }
    return address;
  }
}
