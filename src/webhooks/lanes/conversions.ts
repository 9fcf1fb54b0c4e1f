/**
 * Deliveries whose bodies must be converted first. Until then they occupy the window of their own lane, but no place that tenants share:
 * they wait in this process, and not for a subscriber.
 *
 *   taken from the lane → converting → converted, waits for places → taken by the starter
 *                                    → failed
 *                         (lane was stopped or changed) → put back
 */

import type { Stoppable } from '../sending/exchange.ts';
import type { Presenter } from '../sending/presentation.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { Lane } from './lane.ts';

interface Conversion {
  waiting: LoadedDelivery;
  /** Revision of the subscription when the conversion began. */
  revision: number;
  /** What could stop it, and how often that had happened when the conversion began. */
  stoppable: Stoppable;
  stopCount: number;
}

export interface ConversionsOptions {
  presenter: Presenter;
  isStopping: () => boolean;
  /** The lane has a delivery whose body is there. */
  onConverted: (lane: Lane) => void;
  onFailed: (lane: Lane, waiting: LoadedDelivery) => void;
  onStopped: (lane: Lane, waiting: LoadedDelivery) => void;
}

export class Conversions {
  readonly #options: ConversionsOptions;
  /** Converted deliveries that have no places yet, in the order in which their conversions ended. */
  readonly #converted = new Map<Lane, Conversion[]>();

  constructor(options: ConversionsOptions) {
    this.#options = options;
  }

  /** Whether the lane's next delivery must be converted. Call it only if the lane has one. */
  isNext(lane: Lane): boolean {
    return this.#options.presenter.mustConvert(lane.subscription, lane.next.event);
  }

  /** Takes the lane's next delivery, and converts its body. */
  async begin(lane: Lane): Promise<void> {
    const { presenter, isStopping, onConverted, onFailed, onStopped } = this.#options;
    const waiting = lane.take();
    const stoppable = lane.stoppableFor(waiting.event);
    const { revision } = lane;
    const conversion = { waiting, revision, stoppable, stopCount: stoppable.stopCount };
    const shown = Promise.resolve(presenter.present(lane.subscription, waiting.event));
    // The presenter has reported the error.
    const isConverted = await shown.then(
      () => true,
      () => false,
    );
    // The next node reads it from the database.
    if (isStopping()) return;
    if (isStale(lane, conversion)) onStopped(lane, waiting);
    else if (!isConverted) onFailed(lane, waiting);
    else {
      const converted = this.#converted.get(lane) ?? [];
      converted.push(conversion);
      this.#converted.set(lane, converted);
      lane.convertedCount += 1;
      onConverted(lane);
    }
  }

  /** Whether the first converted delivery may still be sent. Otherwise `tick` puts it back. */
  isCurrent(lane: Lane): boolean {
    const first = this.#converted.get(lane)?.[0];
    return first !== undefined && !isStale(lane, first);
  }

  /** Takes the first converted delivery. Call it only if it is current. */
  take(lane: Lane): LoadedDelivery {
    const converted = this.#converted.get(lane) as [Conversion, ...Conversion[]];
    const [{ waiting }] = converted;
    this.#keep(lane, converted.slice(1));
    return waiting;
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
      for (const { waiting } of stale) this.#options.onStopped(lane, waiting);
    }
  }

  #keep(lane: Lane, converted: Conversion[]): void {
    lane.convertedCount = converted.length;
    if (converted.length === 0) this.#converted.delete(lane);
    else this.#converted.set(lane, converted);
  }
}

function isStale(lane: Lane, { stoppable, stopCount, revision }: Conversion): boolean {
  return stoppable.stopCount !== stopCount || lane.revision !== revision || !lane.isOpen;
}
