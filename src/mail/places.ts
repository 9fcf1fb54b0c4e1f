/**
 * How many mails may be in flight, and who may have how many of these places. A domain gets as much as others leave free
 * (shared/share.ts), and a recipient one place. Recipients of whom nothing is known share half of the places, so that those who have
 * accepted mail before do not wait for addresses that hang.
 */

import { isFree } from '../shared/share.ts';

/** Maximum mails in flight. */
export const placesMax = 8;
/** Recipients who are not proven share this part of the places. */
const unprovenPart = 1 / 2;

/** What wants a place, or has one. */
export interface Applicant {
  /** The address, or the account if it has none. */
  readonly recipient: string;
  /** The part of the address after the `@`. */
  readonly domain: string;
  /** Whether this recipient has accepted a mail lately, and mails to the domain do not hang. */
  readonly isProven: boolean;
}

export class Places {
  readonly #taken = new Set<Applicant>();
  #size = placesMax;

  get taken(): number {
    return this.#taken.size;
  }

  /** Whether there are fewer places than usual. */
  get isNarrow(): boolean {
    return this.#size < placesMax;
  }

  /** Offers one place less than are taken, because the SMTP server refused a connection. Mails in flight keep theirs. */
  shrink(): void {
    this.#size = Math.max(1, Math.min(this.#size, this.#taken.size) - 1);
  }

  /** Offers all places again. */
  widen(): void {
    this.#size = placesMax;
  }

  admits({ recipient, domain, isProven }: Applicant): boolean {
    const taken = [...this.#taken];
    if (taken.some((other) => other.recipient === recipient)) return false;
    const own = taken.filter((other) => other.domain === domain);
    if (!isFree(this.#size, taken.length, own.length)) return false;
    const unproven = (among: readonly Applicant[]) => among.filter((other) => !other.isProven).length;
    return isProven || isFree(Math.ceil(this.#size * unprovenPart), unproven(taken), unproven(own));
  }

  /** Call it only if the applicant is admitted. */
  take(applicant: Applicant): void {
    this.#taken.add(applicant);
  }

  /** Call it with what `take` was called with. */
  release(applicant: Applicant): void {
    this.#taken.delete(applicant);
  }
}
