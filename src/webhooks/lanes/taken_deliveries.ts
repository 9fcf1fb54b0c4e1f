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

export interface TakenDeliveriesOptions {
  presenter: Presenter;
  isStopping: () => boolean;
  /** The lane has a delivery that needs places and perhaps an access token. */
  onSendable: (lane: Lane) => void;
  onFailed: (lane: Lane, taken: Taken) => void;
  onStopped: (lane: Lane, taken: Taken) => void;
}

export class TakenDeliveries {
  readonly #options: TakenDeliveriesOptions;
  /** Deliveries that were converted or refused and have no places yet, in the order in which that happened. */
  readonly #sendable = new Map<Lane, Taken[]>();

  constructor(options: TakenDeliveriesOptions) {
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

  /** The delivery is sendable: it needs nothing but an access token, if it has none, and places. */
  add(lane: Lane, taken: Taken): void {
    this.#keep(lane, [...(this.#sendable.get(lane) ?? []), taken]);
    this.#options.onSendable(lane);
  }

  /** Whether the first sendable delivery may still be sent. Otherwise `tick` puts it back. */
  isCurrent(lane: Lane): boolean {
    const first = this.#sendable.get(lane)?.[0];
    return first !== undefined && !isStale(lane, first);
  }

  /** The delivery that `take` would take. */
  next(lane: Lane): LoadedDelivery {
    const [first] = this.#sendable.get(lane) as [Taken, ...Taken[]];
    return first.waiting;
  }

  /** Takes the first sendable delivery. Call it only if it is current. */
  take(lane: Lane): Taken {
    const [first, ...others] = this.#sendable.get(lane) as [Taken, ...Taken[]];
    this.#keep(lane, others);
    return first;
  }

  /** Puts back what waits in lanes that were stopped or changed. */
  tick(): void {
    for (const [lane, sendable] of this.#sendable) {
      const stale = sendable.filter((each) => isStale(lane, each));
      if (stale.length === 0) continue;
      this.#keep(
        lane,
        sendable.filter((each) => !stale.includes(each)),
      );
      for (const taken of stale) this.#options.onStopped(lane, taken);
    }
  }

  #keep(lane: Lane, sendable: Taken[]): void {
    lane.sendableCount = sendable.length;
    if (sendable.length === 0) this.#sendable.delete(lane);
    else this.#sendable.set(lane, sendable);
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
