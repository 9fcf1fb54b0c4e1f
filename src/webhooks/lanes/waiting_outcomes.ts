/**
 * Outcomes that wait to be written, in the order of their ends, each with the lane object from when its attempt started. Responses
 * that subscribers send may be large, so a statement writes some MiB of them, and tenants have shares of what waits (shared/share.ts): above
 * its share, an attempt is kept without its response.
 *
 *   added → waiting → taken for a statement → written, or returned
 */

import { isFree } from '../../shared/share.ts';
import { omitResponse, responseBytes } from './attempt_budget.ts';
import type { Tenant } from './delivery_memory.ts';
import type { Lane } from './lane.ts';
import type { Outcome } from './outcome_policy.ts';

/** Bytes of responses that may wait, and that one statement writes at most. */
const waitingBytesMax = 33_554_432;
const batchBytesMax = 4_194_304;

export interface Held {
  outcomes: Outcome[];
  /** The lane object of each outcome. */
  holders: Lane[];
}

export class WaitingOutcomes {
  #outcomes: Outcome[] = [];
  #holders: Lane[] = [];
  #attempts = 0;
  #bytes = 0;
  /** By tenant. */
  readonly #bytesOf = new Map<string, number>();
  readonly #countOf = new Map<string, number>();

  get count(): number {
    return this.#outcomes.length;
  }

  /** Those of attempts. The others end deliveries of which nothing was sent, or put them back. */
  get attempts(): number {
    return this.#attempts;
  }

  /** @param max of all tenants @returns whether the tenant's share of so many outcomes has room */
  hasRoom(tenant: Tenant, max: number): boolean {
    return isFree(max, this.count, this.#countOf.get(tenant.key) ?? 0);
  }

  lanes(): Set<Lane> {
    return new Set(this.#holders);
  }

  /** Adds a new outcome. Leaves its response out if too many bytes of the tenant's wait. */
  add(lane: Lane, outcome: Outcome): void {
    const { attempt } = outcome;
    if (attempt !== null && responseBytes(attempt) > 0) {
      const own = this.#bytesOf.get(lane.tenant.key) ?? 0;
      if (!isFree(waitingBytesMax, this.#bytes, own)) omitResponse(attempt);
    }
    this.#outcomes.push(outcome);
    this.#holders.push(lane);
    this.#count(lane, outcome, 1);
  }

  /** Takes outcomes for the next statement. @param max how many at most */
  take(max: number): Held {
    let count = 0;
    for (let bytes = 0; count < max && count < this.#outcomes.length && bytes < batchBytesMax; count += 1) {
      const outcome = this.#outcomes[count] as Outcome;
      bytes += bytesOf(outcome);
      this.#count(this.#holders[count] as Lane, outcome, -1);
    }
    return { outcomes: this.#outcomes.splice(0, count), holders: this.#holders.splice(0, count) };
  }

  /** Returns outcomes that were taken and not written. They are the next ones. */
  return({ outcomes, holders }: Held): void {
    for (const [index, outcome] of outcomes.entries()) this.#count(holders[index] as Lane, outcome, 1);
    this.#outcomes = outcomes.concat(this.#outcomes);
    this.#holders = holders.concat(this.#holders);
  }

  /** Takes the outcomes of lanes. */
  takeOf(lanes: (lane: Lane) => boolean): Held {
    const [taken, left]: [Held, Held] = [none(), none()];
    for (const [index, outcome] of this.#outcomes.entries()) {
      const holder = this.#holders[index] as Lane;
      const { outcomes, holders } = lanes(holder) ? taken : left;
      outcomes.push(outcome);
      holders.push(holder);
    }
    for (const [index, outcome] of taken.outcomes.entries()) {
      this.#count(taken.holders[index] as Lane, outcome, -1);
    }
    this.#outcomes = left.outcomes;
    this.#holders = left.holders;
    return taken;
  }

  #count({ tenant: { key } }: Lane, outcome: Outcome, sign: 1 | -1): void {
    if (outcome.attempt !== null) this.#attempts += sign;
    addTo(this.#countOf, key, sign);
    const bytes = sign * bytesOf(outcome);
    this.#bytes += bytes;
    addTo(this.#bytesOf, key, bytes);
  }
}

function addTo(counts: Map<string, number>, key: string, change: number): void {
  const count = (counts.get(key) ?? 0) + change;
  if (count === 0) counts.delete(key);
  else counts.set(key, count);
}

const none = (): Held => ({ outcomes: [], holders: [] });

function bytesOf({ attempt }: Outcome): number {
  return attempt === null ? 0 : responseBytes(attempt);
}
