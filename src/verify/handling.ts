/**
 * Handles each delivery once, or in the order of the sequence. A delivery is claimed in a store by one conditional statement:
 *
 *   unknown → claimed → handled              the handler has returned
 *             claimed → unknown              the handler has thrown; the server's retry is handled
 *             claimed → claimed              the process died, and the claim has expired
 */

import type { Delivery } from './delivery.ts';
import { StatusError } from './error.ts';
import type { DeliveryStore } from './stores.ts';

/**
 * `busy`: another request handles the delivery, or another one of the same order, at this moment. `out-of-order`: a later delivery
 * was handled before.
 */
export type HandlingErrorCode = 'busy' | 'out-of-order';

/** The delivery cannot be handled now. Respond with `status`: 503 for `busy`, 409 for `out-of-order`. The server retries. */
export class HandlingError extends StatusError<HandlingErrorCode> {
  override readonly name = 'HandlingError';
}

export interface HandlingOptions {
  /**
   * How long a claim is valid, in milliseconds: a delivery whose process has died is handled again after this time. It must be
   * longer than any handler takes. Default: 60,000.
   */
  leaseMs?: number | undefined;
}

/**
 * Runs the handler, unless the delivery was handled before.
 * @returns whether the handler has run
 * @throws HandlingError if the delivery cannot be handled now, and what the handler throws
 */
export type Handle = <D extends Pick<Delivery, 'id' | 'sequence'>>(
  delivery: D,
  handler: (delivery: D) => unknown,
) => Promise<boolean>;

/** Handles each delivery id once. */
export function once(store: DeliveryStore, options?: HandlingOptions): Handle {
  return (delivery, handler) => handle(store, options, delivery.id, 1, () => handler(delivery));
}

/**
 * Handles the deliveries of a subscription that is `ordered` by their sequence: each of them once, one at a time, and none after
 * a later one. Different subscriptions can share a store.
 */
export function inOrder(store: DeliveryStore, options?: HandlingOptions): Handle {
  return async (delivery, handler) => {
    const { id, sequence } = delivery;
    // The last group of an id is its sequence, and the others are those of its subscription. After a failover of the server's
    // database they differ, and the sequence may go back.
    const [, lane, last] = /^([0-9a-f]{8}(?:-[0-9a-f]{4}){3})-([0-9a-f]{12})$/.exec(id) ?? [];
    if (lane === undefined || Number.parseInt(last as string, 16) !== sequence) {
      throw new TypeError('the id of the delivery does not have its sequence');
    }
    return handle(store, options, lane, sequence, () => handler(delivery));
  };
}

async function handle(
  store: DeliveryStore,
  { leaseMs = 60_000 }: HandlingOptions = {},
  key: string,
  position: number,
  handler: () => unknown,
): Promise<boolean> {
  const token = crypto.randomUUID();
  const handled = await store.claim(key, position, token, leaseMs);
  if (handled !== null) {
    if (handled === position) return false;
    if (handled > position)
      throw new HandlingError('out-of-order', 409, 'A later delivery was handled before.');
    throw new HandlingError('busy', 503, 'A delivery is being handled at this moment.');
  }
  try {
    await handler();
  } catch (error) {
    // If this fails too, such as in a transaction that is aborted, the claim expires.
    await store.release(key, token).catch(() => {});
    throw error;
  }
  await store.complete(key, position, token);
  return true;
}
