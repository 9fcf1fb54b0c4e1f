/**
 * The delivery log as server-sent events: `GET /subscriptions/<id>/deliveries` with `Accept: text/event-stream`. The newest
 * deliveries come first, then each delivery that is new or has changed. The log is polled once a second by index, so it does not
 * matter which node sends.
 *
 *   opened → poll, send changes → poll … → ended (token, subscription, time, shutdown, displaced) | connection closed
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { isOverloaded } from '../../http/overload/refusal.ts';
import { workForStream } from '../../http/overload/request_place.ts';
import { Problem } from '../../http/problem.ts';
import { beginStream } from '../../http/stream_response.ts';
import { displaced, type SlotHolder, type StreamSlots } from '../../http/stream_slots.ts';

/** The newest deliveries, which are watched for changes. */
export const watchedMax = 100;
const pollMs = 1_000;
const keepAliveMs = 15_000;
const streamMsMax = 15 * 60_000;
/** Bytes that a client may leave unread. */
const unreadBytesMax = 1_048_576;

export interface StreamedDelivery {
  id: string;
  sequence: number;
}

export interface StreamSource<Delivery extends StreamedDelivery> extends SlotHolder {
  /**
   * @param signal ends the wait for a turn
   * @throws Problem 401 if the token has expired or was revoked, 404 if the subscription is gone, 503 or NoTurnError if others read
   */
  poll: (signal: AbortSignal) => Promise<Delivery[]>;
}

export class DeliveryStreams {
  readonly #slots: StreamSlots;

  constructor(slots: StreamSlots) {
    this.#slots = slots;
  }

  /** @throws Problem 429 if the token or its owner has too many streams, 503 if the node has */
  async send<Delivery extends StreamedDelivery>(
    request: FastifyRequest,
    reply: FastifyReply,
    { poll, ...holder }: StreamSource<Delivery>,
  ): Promise<FastifyReply> {
    const stream = this.#slots.take(holder);
    try {
      // An error before the first event is an ordinary error response.
      const first = await poll(stream.signal);
      beginStream(reply, stream);
      await this.#run(request, reply, stream, poll, first);
    } finally {
      this.#slots.release(stream);
    }
    return reply;
  }

  async #run<Delivery extends StreamedDelivery>(
    request: FastifyRequest,
    reply: FastifyReply,
    stream: AbortController,
    poll: StreamSource<Delivery>['poll'],
    first: Delivery[],
  ): Promise<void> {
    const { raw } = reply;
    const endsAt = performance.now() + streamMsMax;
    const sent = new Map<string, string>();
    let reason = 'shutdown';
    let spokenAt = performance.now();
    for (let deliveries = first; ; ) {
      if (sendChanges(raw, deliveries, sent)) spokenAt = performance.now();
      else if (performance.now() - spokenAt > keepAliveMs) {
        raw.write(': keep-alive\n\n');
        spokenAt = performance.now();
      }
      if (raw.writableLength > unreadBytesMax) return void raw.destroy();
      await sleep(pollMs, undefined, { signal: stream.signal }).catch(() => {});
      if (stream.signal.aborted) {
        if (stream.signal.reason === displaced) reason = displaced;
        break;
      }
      if (performance.now() > endsAt) {
        reason = 'time';
        break;
      }
      try {
        deliveries = (await workForStream(request, stream.signal, () => poll(stream.signal))) ?? deliveries;
      } catch (error) {
        if (isOverloaded(error)) continue;
        const status = error instanceof Problem ? error.status : 500;
        if (status >= 500) {
          request.log.warn({ err: error }, 'delivery stream could not read the log');
          continue;
        }
        reason = status === 404 ? 'gone' : 'token';
        break;
      }
    }
    if (!raw.destroyed) raw.end(`event: end\ndata: ${JSON.stringify({ reason })}\n\n`);
  }
}

/** Sends changed deliveries, oldest first. @returns whether there were any */
function sendChanges(
  raw: FastifyReply['raw'],
  deliveries: readonly StreamedDelivery[],
  sent: Map<string, string>,
): boolean {
  const lines: string[] = [];
  const current = new Set(deliveries.map(({ id }) => id));
  for (const delivery of deliveries.toReversed()) {
    const data = JSON.stringify(delivery);
    if (sent.get(delivery.id) === data) continue;
    sent.set(delivery.id, data);
    lines.push(`event: delivery\nid: ${delivery.sequence}\ndata: ${data}\n\n`);
  }
  for (const id of sent.keys()) if (!current.has(id)) sent.delete(id);
  if (lines.length > 0) raw.write(lines.join(''));
  return lines.length > 0;
}
