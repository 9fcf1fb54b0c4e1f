/**
 * The delivery log as server-sent events: `GET /subscriptions/<id>/deliveries` with `Accept: text/event-stream`. The newest
 * deliveries come first, then each delivery that is new or has changed. The log is polled once a second by index, so it does not
 * matter which node sends.
 *
 *   opened → poll, send changes → poll … → ended (token, subscription, time, shutdown) | connection closed
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../../http/problem.ts';

/** The newest deliveries, which are watched for changes. */
export const watchedMax = 100;
const pollMs = 1_000;
const keepAliveMs = 15_000;
const streamMsMax = 15 * 60_000;
/** Maximum streams of one token, of one account (or of an app that acts for itself), and of one node. */
const streamsOfTokenMax = 5;
const streamsOfOwnerMax = 20;
const streamsMax = 200;
/** Bytes that a client may leave unread. */
const unreadBytesMax = 1_048_576;

export interface StreamedDelivery {
  id: string;
  sequence: number;
}

export interface StreamSource<Delivery extends StreamedDelivery> {
  /** @throws Problem 401 if the token has expired or was revoked, 404 if the subscription is gone */
  poll: () => Promise<Delivery[]>;
  tokenId: string;
  /** The account, or the app that acts for itself. New tokens are easy to get, new accounts are not. */
  owner: string;
}

export class DeliveryStreams {
  readonly #open = new Map<AbortController, Pick<StreamSource<never>, 'tokenId' | 'owner'>>();

  constructor(api: FastifyInstance) {
    api.addHook('preClose', async () => {
      for (const stream of this.#open.keys()) stream.abort();
    });
  }

  /** @throws Problem 429 if the token or its owner has too many streams, 503 if the node has */
  async send<Delivery extends StreamedDelivery>(
    request: FastifyRequest,
    reply: FastifyReply,
    { poll, tokenId, owner }: StreamSource<Delivery>,
  ): Promise<FastifyReply> {
    const open = [...this.#open.values()];
    const tooMany = (status: number, detail: string) =>
      new Problem(status, detail, { code: 'too-many-streams', headers: { 'retry-after': '30' } });
    if (open.filter((each) => each.tokenId === tokenId).length >= streamsOfTokenMax) {
      throw tooMany(429, `A token can have at most ${streamsOfTokenMax} streams.`);
    }
    if (open.filter((each) => each.owner === owner).length >= streamsOfOwnerMax) {
      throw tooMany(429, `An account can have at most ${streamsOfOwnerMax} streams on a node.`);
    }
    if (open.length >= streamsMax) throw tooMany(503, 'This node has no stream left. Try again.');
    const stream = new AbortController();
    this.#open.set(stream, { tokenId, owner });
    try {
      // An error before the first event is an ordinary error response.
      const first = await poll();
      this.#begin(reply);
      await this.#run(request, reply, stream, poll, first);
    } finally {
      this.#open.delete(stream);
    }
    return reply;
  }

  #begin(reply: FastifyReply): void {
    const headers = reply.getHeaders();
    reply.hijack();
    reply.raw.writeHead(200, {
      ...(headers as Record<string, string>),
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'private, no-store',
      // For proxies that would buffer the response.
      'x-accel-buffering': 'no',
    });
    // Node.js would send the head with the first event.
    reply.raw.flushHeaders();
  }

  async #run<Delivery extends StreamedDelivery>(
    request: FastifyRequest,
    reply: FastifyReply,
    stream: AbortController,
    poll: () => Promise<Delivery[]>,
    first: Delivery[],
  ): Promise<void> {
    const { raw } = reply;
    raw.on('close', () => stream.abort());
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
      if (stream.signal.aborted) break;
      if (performance.now() > endsAt) {
        reason = 'time';
        break;
      }
      try {
        deliveries = await poll();
      } catch (error) {
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
