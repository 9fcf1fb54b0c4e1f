/**
 * One signed POST, as sent by the bare loop and the senders compared with Nuncio: the same bytes on the wire as a
 * delivery with the signature `timestamp`, through the cheapest API of undici.
 */

import { createHmac } from 'node:crypto';
import type { Dispatcher, Pool } from 'undici';

/** Connections from each sender to the subscriber, which is also the number of concurrent requests. */
export const connectionsMax = 64;

export interface Delivery {
  id: string;
  /** The path at the subscriber. */
  path: string;
  sequence: number;
  secret: string;
  /** JSON, the exact bytes to send. */
  body: string;
}

/** @returns the status of the response. @throws the network error */
export function postSigned(pool: Pool, delivery: Delivery): Promise<number> {
  const seconds = Math.floor(Date.now() / 1000);
  const digest = createHmac('sha256', delivery.secret).update(`${seconds}.${delivery.body}`).digest('hex');
  return new Promise((resolve, reject) => {
    pool.dispatch(
      {
        method: 'POST',
        path: delivery.path,
        headers: [
          ...['content-type', 'application/json'],
          ...['user-agent', 'Nuncio/0.1.0'],
          ...['nuncio-event', 'push'],
          ...['nuncio-delivery', delivery.id],
          ...['nuncio-sequence', String(delivery.sequence)],
          ...['nuncio-attempt', '1'],
          ...['nuncio-signature', `t=${seconds},v1=${digest}`],
        ],
        body: delivery.body,
      },
      new StatusHandler(resolve, reject),
    );
  });
}

class StatusHandler implements Dispatcher.DispatchHandler {
  readonly #resolve: (status: number) => void;
  readonly #reject: (error: Error) => void;
  #status = 0;

  constructor(resolve: (status: number) => void, reject: (error: Error) => void) {
    this.#resolve = resolve;
    this.#reject = reject;
  }

  onRequestStart(): void {}

  onResponseStart(_controller: Dispatcher.DispatchController, status: number): void {
    this.#status = status;
  }

  onResponseData(): void {}

  onResponseEnd(): void {
    this.#resolve(this.#status);
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    this.#reject(error);
  }
}
