/**
 * Decides which steps are recorded, so that a flood causes few writes and hides nothing. Steps that somebody has authenticated and steps
 * that anyone could send with the public id of an app have places of their own: the latter never displace the former. Within each,
 * places are shared (shared/share.ts): in the next write by apps and by senders, and of an app by senders.
 */

import { LRUCache } from 'lru-cache';
import { upTo } from '../shared/entries.ts';
import { isFree } from '../shared/share.ts';
import { TokenBucket } from '../shared/token_bucket.ts';
import type { Observation } from './step.ts';

/** Maximum steps of one write, for all apps. */
const writtenMax = { authenticated: 500, other: 250 };
/** Maximum steps of one registered app in a minute. */
const perAppMax = { authenticated: 240, other: 240 };
const minuteMs = 60_000;
/** Refused steps of one network address that are not authenticated: at once, and per minute. */
const refusedPerAddress = { burst: 30, perMinute: 10 };
/** How many addresses are counted. The sharers of a minute are at most the steps that were written in it. */
const addressesMax = 20_000;

/** What sharers have of a limited number of places. */
class Places {
  readonly #size: number;
  #used = 0;
  readonly #own = new Map<string, number>();

  constructor(size: number) {
    this.#size = size;
  }

  hasRoomFor(sharer: string): boolean {
    return isFree(this.#size, this.#used, this.#own.get(sharer) ?? 0);
  }

  take(sharer: string): void {
    this.#used += 1;
    this.#own.set(sharer, (this.#own.get(sharer) ?? 0) + 1);
  }
}

/** The places of the next write, shared by apps and by senders. */
class NextWrite {
  readonly apps = {
    authenticated: new Places(writtenMax.authenticated),
    other: new Places(writtenMax.other),
  };
  readonly senders = {
    authenticated: new Places(writtenMax.authenticated),
    other: new Places(writtenMax.other),
  };
}

export class StepLimits {
  readonly #refusals = new LRUCache<string, TokenBucket>(upTo(addressesMax));
  #next = new NextWrite();
  /** Places of apps in this minute. */
  #apps = new Map<string, Places>();
  #minuteEnd = Number.NEGATIVE_INFINITY;

  /**
   * @param source the sender's address, as a digest
   * @returns whether the step is recorded; if so, it is counted
   */
  admits(step: Observation, source: string): boolean {
    const standing = step.isAuthenticated ? 'authenticated' : 'other';
    // A user is one sender, from any address. Anyone can send the id of an app that is not registered: these share one place.
    const sender = step.accountId ?? source;
    const app = step.isKnown ? (step.clientId ?? '') : '';
    const nextApps = this.#next.apps[standing];
    const nextSenders = this.#next.senders[standing];
    const own = step.isKnown ? this.#placesOf(app, standing) : undefined;
    if (!nextApps.hasRoomFor(app) || !nextSenders.hasRoomFor(sender)) return false;
    if (own !== undefined && !own.hasRoomFor(sender)) return false;
    if (!step.isAuthenticated && step.outcome === 'refused' && !this.#takeRefusal(source)) return false;
    nextApps.take(app);
    nextSenders.take(sender);
    own?.take(sender);
    if (own !== undefined) this.#apps.set(`${standing} ${app}`, own);
    return true;
  }

  /** The steps so far are being written. */
  written(): void {
    this.#next = new NextWrite();
  }

  #placesOf(app: string, standing: 'authenticated' | 'other'): Places {
    const now = performance.now();
    if (now >= this.#minuteEnd) {
      this.#apps = new Map();
      this.#minuteEnd = now + minuteMs;
    }
    return this.#apps.get(`${standing} ${app}`) ?? new Places(perAppMax[standing]);
  }

  #takeRefusal(source: string): boolean {
    const now = performance.now();
    const { burst, perMinute } = refusedPerAddress;
    const bucket = this.#refusals.get(source) ?? new TokenBucket(perMinute / 60, burst, now);
    this.#refusals.set(source, bucket);
    if (bucket.nextAt(now) !== null) return false;
    bucket.take();
    return true;
  }
}
