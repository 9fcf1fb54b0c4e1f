/**
 * A host or an address, and its window.
 *
 *   unknown (small window, low rate) → accepted once → known (the window grows with accepted deliveries, and shrinks with failures of
 *   proven lanes)
 *
 * This is not stored: after a restart, a destination is known again after its first accepted delivery.
 */

import { TokenBucket } from '../../shared/token_bucket.ts';
import { circuitPause } from '../sending/retry_schedule.ts';
import type { Lane } from './lane.ts';
import { Window } from './window.ts';

/** Seconds of its rate that may start at once after a quiet time. */
const burstSeconds = { unknown: 4, known: 0.1 };

export interface DestinationQuotas {
  /** Maximum attempts of unproven lanes in flight while it is unknown. Proven lanes have as many places more. */
  readonly unknown: number;
  /** Maximum size of the window. */
  readonly known: number;
  /** Attempts per second while it is unknown, and after; null for no limit. */
  readonly unknownRate: number;
  readonly knownRate: number | null;
}

export class Destination {
  readonly window: Window;
  readonly #quotas: DestinationQuotas;
  readonly #sizeMax: number;
  readonly #sizeMin: number;
  isKnown = false;
  usedAt: number;

  constructor(quotas: DestinationQuotas, now: number) {
    const { unknown, known, unknownRate } = quotas;
    this.#quotas = quotas;
    this.#sizeMax = Math.max(known, unknown);
    this.#sizeMin = Math.min(2 * unknown, this.#sizeMax);
    this.window = new Window(this.#sizeMin, unknown, rateOf(unknownRate, burstSeconds.unknown, now));
    this.usedAt = now;
  }

  /** A delivery was accepted. */
  accept(now: number): void {
    const { knownRate } = this.#quotas;
    if (!this.isKnown) this.window.rate = rateOf(knownRate, burstSeconds.known, now);
    this.isKnown = true;
    this.#resize(Math.min(this.window.size + 1, this.#sizeMax));
  }

  /** An attempt failed that must not leave the window as large as it is. */
  protected shrink(): void {
    this.#resize(Math.max(this.window.size - 1, this.#sizeMin));
  }

  #resize(size: number): void {
    this.window.size = size;
    this.window.unprovenSize = Math.max(this.#quotas.unknown, Math.ceil(size / 2));
  }
}

/** A bucket that allows a part of a second's rate at once. @returns null if there is no limit */
export function rateOf(perSecond: number | null, burst: number, now: number): TokenBucket | null {
  return perSecond === null ? null : new TokenBucket(perSecond, perSecond * burst, now);
}

export const knownBurstSeconds = burstSeconds.known;

interface Failed {
  failures: number;
  pausedUntil: number;
}

export class Host extends Destination {
  /** The key of the address of its last connection; null before the first. */
  addressKey: string | null = null;
  /**
   * Failures while the host is unknown, by account. Ten of one account pause the host for it. They pause it for nobody else: whoever has
   * a dozen accounts could keep the host from a new subscriber for ever.
   */
  readonly #failedOf = new Map<string, Failed>();
  /**
   * By how much accepted deliveries of each account have let the window grow. Its failures take away no more: of several accounts at a host,
   * one whose deliveries fail would keep the window small for all.
   */
  readonly #grownBy = new Map<string, number>();

  acceptOf(tenant: string, now: number): void {
    const { size } = this.window;
    this.accept(now);
    this.#failedOf.clear();
    if (this.window.size > size) this.#grownBy.set(tenant, (this.#grownBy.get(tenant) ?? 0) + 1);
  }

  /** An attempt failed. */
  fail(tenant: string, isProven: boolean, now: number): void {
    if (!this.isKnown) this.#failUnknown(tenant, now);
    else if (isProven) this.#shrinkOf(tenant);
  }

  #shrinkOf(tenant: string): void {
    const left = (this.#grownBy.get(tenant) ?? 0) - 1;
    if (left < 0) return;
    if (left === 0) this.#grownBy.delete(tenant);
    else this.#grownBy.set(tenant, left);
    this.shrink();
  }

  #failUnknown(tenant: string, now: number): void {
    const failed = this.#failedOf.get(tenant) ?? { failures: 0, pausedUntil: 0 };
    this.#failedOf.set(tenant, failed);
    failed.failures += 1;
    failed.pausedUntil = now + circuitPause(failed.failures);
  }

  /** Until when failures at the unknown host pause a lane. */
  pausedUntil({ tenant, isProven }: Lane): number {
    if (this.isKnown || isProven) return 0;
    return this.#failedOf.get(tenant.key)?.pausedUntil ?? 0;
  }

  /** Whether an account that only fails at the unknown host has its probe in flight. */
  isProbing({ tenant }: Lane): boolean {
    if (this.isKnown || this.window.inFlightOf(tenant) === 0) return false;
    return circuitPause(this.#failedOf.get(tenant.key)?.failures ?? 0) > 0;
  }
}
