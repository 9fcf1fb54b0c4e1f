/**
 * Deliveries that were taken from their lanes and wait for something else than a subscriber: for the conversion of their bodies, or for a
 * new access token after a 401. Meanwhile they occupy the window of their own lane, but no place that tenants share.
 *
 *   taken from the lane → converting → converted, waits for places → taken by the starter
 *                                    → failed
 *   sent, and refused with 401 → waits for a token and places → taken by the starter
 *   (lane was stopped or changed) → put back; refused ones end with their 401
 */

import type { ExchangeResult, Stoppable } from '../sending/exchange.ts';
import type { Presenter } from '../sending/presentation.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { Lane } from './lane.ts';

/** A delivery that was taken from its lane. */
export interface Taken {
  waiting: LoadedDelivery;
  /** Revision of the subscription when the delivery was taken. */
  revision: number;
  /** What could stop it, and how often that had happened when it was taken. */
  stoppable: Stoppable;
  stopCount: number;
  /** The response to a first access token, if it was 401. */
  refused: Refused | null;
}

interface Refused {
  result: ExchangeResult;
  /** What the request authenticated with. */
  secrets: readonly string[];
}

export interface ConversionsOptions {
  presenter: Presenter;
  isStopping: () => boolean;
  /** The lane has a delivery whose body is there. */
  onConverted: (lane: Lane) => void;
  onFailed: (lane: Lane, taken: Taken) => void;
  onStopped: (lane: Lane, taken: Taken) => void;
}

export class Conversions {
  readonly #options: ConversionsOptions;
  /** Converted and refused deliveries that have no places yet, in the order in which that happened. */
  readonly #converted = new Map<Lane, Taken[]>();

  constructor(options: ConversionsOptions) {
    this.#options = options;
  }

  /** Whether the lane's next delivery must be converted. Call it only if the lane has one. */
  isNext(lane: Lane): boolean {
    return this.#options.presenter.mustConvert(lane.subscription, lane.next.event);
  }

  /** Takes the lane's next delivery, and converts its body. */
  async begin(lane: Lane): Promise<void> {
    const { presenter, isStopping, onFailed, onStopped } = this.#options;
    const taken = takeFrom(lane);
    const shown = Promise.resolve(presenter.present(lane.subscription, taken.waiting.event));
    // The presenter has reported the error.
    const isConverted = await shown.then(
      () => true,
      () => false,
    );
    // The next node reads it from the database.
    if (isStopping()) return;
    if (isStale(lane, taken)) onStopped(lane, taken);
    else if (!isConverted) onFailed(lane, taken);
    else this.add(lane, taken);
  }

  /** The delivery needs nothing but an access token, if it has none, and places. */
  add(lane: Lane, taken: Taken): void {
    this.#keep(lane, [...(this.#converted.get(lane) ?? []), taken]);
    this.#options.onConverted(lane);
  }

  /** Whether the first converted delivery may still be sent. Otherwise `tick` puts it back. */
  isCurrent(lane: Lane): boolean {
    const first = this.#converted.get(lane)?.[0];
    return first !== undefined && !isStale(lane, first);
  }

  /** Takes the first converted delivery. Call it only if it is current. */
  take(lane: Lane): Taken {
    const [first, ...others] = this.#converted.get(lane) as [Taken, ...Taken[]];
    this.#keep(lane, others);
    return first;
  }

  /** Puts back what waits in lanes that were stopped or changed. */
  tick(): void {
    for (const [lane, converted] of this.#converted) {
      const stale = converted.filter((each) => isStale(lane, each));
      if (stale.length === 0) continue;
      this.#keep(
        lane,
        converted.filter((each) => !stale.includes(each)),
      );
      for (const taken of stale) this.#options.onStopped(lane, taken);
    }
  }

  #keep(lane: Lane, converted: Taken[]): void {
    lane.convertedCount = converted.length;
    if (converted.length === 0) this.#converted.delete(lane);
    else this.#converted.set(lane, converted);
  }
}

/** Takes the lane's next delivery. */
export function takeFrom(lane: Lane): Taken {
  const waiting = lane.take();
  const stoppable = lane.stoppableFor(waiting.event);
  const { stopCount } = stoppable;
  return { waiting, revision: lane.revision, stoppable, stopCount, refused: null };
}

function isStale(lane: Lane, { stoppable, stopCount, revision }: Taken): boolean {
  return stoppable.stopCount !== stopCount || lane.revision !== revision || !lane.isOpen;
}
