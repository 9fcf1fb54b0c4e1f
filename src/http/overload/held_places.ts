/** The places of a class that are held, and by whom. */

import { Bag, type BagItem } from '../../shared/bag.ts';
import type { Caller } from './caller.ts';
import { CallerCounts } from './caller_counts.ts';

interface Place extends BagItem {
  readonly caller: Caller;
}

export class HeldPlaces {
  /** Their callers are not asked for before it matters, because it costs more than all the rest. */
  readonly #unnamed = new Bag<Place>();
  readonly #named = new CallerCounts();

  get size(): number {
    return this.#unnamed.size + this.#named.size;
  }

  add(place: Place): void {
    this.#unnamed.add(place);
  }

  delete(place: Place): void {
    if (!this.#unnamed.delete(place)) this.#named.change(place.caller, -1);
  }

  /** Whether the caller may hold one more of `max` places. */
  hasRoom(max: number, caller: Caller): boolean {
    for (const place of this.#unnamed.takeAll()) this.#named.change(place.caller, 1);
    return this.#named.hasRoom(max, caller);
  }
}
