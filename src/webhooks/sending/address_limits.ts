/**
 * Limits on connections to each destination address: how many are open, and how fast they are opened. Names are cheap, since a
 * wildcard record provides any number of hosts; addresses are not. An address that has never accepted a delivery gets few
 * connections, and each of them carries one exchange.
 *
 *   unknown (few connections, low rate) → accepted once → known (one more connection with each accepted exchange)
 */

import { isIP } from 'node:net';
import { classifyAddress } from '../../egress/address.ts';

export interface AddressQuotas {
  /** Connections to one address: before it has accepted anything, and at most. */
  unknown: number;
  known: number;
  /** Connections per second to an address that has accepted nothing. */
  unknownRate: number;
}

/** Seconds of its rate that an address may use at once. */
const burstSeconds = 4;
/** Milliseconds that an address is remembered, and between removals of old ones. */
const rememberedMs = 3_600_000;
const forgetPauseMs = 60_000;

interface Address {
  isKnown: boolean;
  window: number;
  open: number;
  tokens: number;
  tokensAt: number;
  waiting: (() => void)[];
  usedAt: number;
}

export class AddressLimits {
  readonly #quotas: AddressQuotas;
  readonly #addresses = new Map<string, Address>();
  readonly #crowded = new Set<Address>();
  #forgotAt = 0;

  constructor(quotas: AddressQuotas) {
    this.#quotas = quotas;
  }

  /** Resolves when a connection may be opened. @param key from `addressKey` */
  acquire(key: string): Promise<void> {
    const address = this.#addressOf(key);
    const { promise, resolve } = Promise.withResolvers<void>();
    address.waiting.push(resolve);
    this.#crowded.add(address);
    this.#admitWaiting(address, performance.now());
    return promise;
  }

  /** Releases the slot of a connection that is closed or was not opened. */
  release(key: string): void {
    const address = this.#addressOf(key);
    address.open -= 1;
    this.#admitWaiting(address, performance.now());
  }

  /**
   * Moves the slot of a connection that reached another address than expected.
   * @returns whether that address has room for it
   */
  move(from: string, to: string): boolean {
    if (from === to) return true;
    this.release(from);
    const address = this.#addressOf(to);
    address.open += 1;
    return address.open <= address.window;
  }

  accepted(key: string): void {
    const address = this.#addressOf(key);
    address.isKnown = true;
    address.window = Math.min(address.window + 1, Math.max(this.#quotas.known, this.#quotas.unknown));
    this.#admitWaiting(address, performance.now());
  }

  isKnown(key: string): boolean {
    return this.#addressOf(key).isKnown;
  }

  tick(now: number): void {
    for (const address of this.#crowded) this.#admitWaiting(address, now);
    if (now - this.#forgotAt < forgetPauseMs) return;
    this.#forgotAt = now;
    for (const [key, { open, waiting, usedAt }] of this.#addresses) {
      if (open <= 0 && waiting.length === 0 && now - usedAt > rememberedMs) this.#addresses.delete(key);
    }
  }

  #admitWaiting(address: Address, now: number): void {
    const { unknownRate } = this.#quotas;
    const gained = ((now - address.tokensAt) / 1_000) * unknownRate;
    address.tokens = Math.min(address.tokens + gained, unknownRate * burstSeconds);
    address.tokensAt = now;
    while (address.waiting.length > 0 && address.open < address.window) {
      if (!address.isKnown) {
        if (address.tokens < 1) return;
        address.tokens -= 1;
      }
      address.open += 1;
      address.usedAt = now;
      address.waiting.shift()?.();
    }
    if (address.waiting.length === 0) this.#crowded.delete(address);
  }

  #addressOf(key: string): Address {
    let address = this.#addresses.get(key);
    if (address === undefined) {
      const { unknown, unknownRate } = this.#quotas;
      const now = performance.now();
      address = {
        isKnown: false,
        window: unknown,
        open: 0,
        tokens: unknownRate * burstSeconds,
        tokensAt: now,
        waiting: [],
        usedAt: now,
      };
      this.#addresses.set(key, address);
    }
    return address;
  }
}

/**
 * The key that counts as one address: an IPv4 address, or the /64 prefix of an IPv6 address, which one household has.
 * In development each loopback port counts by itself.
 * @param address in the form of `canonicalAddress`
 */
export function addressKey(address: string, port: string): string {
  if (classifyAddress(address) === 'loopback') return `${address} ${port}`;
  if (isIP(address) !== 6) return address;
  const [left = '', right] = address.split('::');
  const first = left === '' ? [] : left.split(':');
  const last = right === undefined || right === '' ? [] : right.split(':');
  const gap = right === undefined ? 0 : Math.max(8 - first.length - last.length, 0);
  return [...first, ...new Array<string>(gap).fill('0'), ...last].slice(0, 4).join(':');
}
