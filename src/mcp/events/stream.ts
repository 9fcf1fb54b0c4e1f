/**
 * `events/stream`: events as they come, as messages of the protocol in server-sent events.
 *
 *   active → event … → heartbeat … → active (truncated: events are lost) → … → terminated (access revoked) | error (suspended)
 *   → empty result (token, time, shutdown) | connection closed
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { FastifyBaseLogger, FastifyReply } from 'fastify';
import { Problem } from '../../http/problem.ts';
import { beginStream, endStream, hasRoom } from '../../http/stream_response.ts';
import type { SlotHolder, StreamSlots } from '../../http/stream_slots.ts';
import type { RequestId } from '../json_rpc.ts';
import { subscriptionIdKey } from '../protocol.ts';
import { describeError } from './errors.ts';
import type { FeedPlace, FeedRequest, Feeds } from './feed.ts';

/** At least every 30 seconds, the cursor is sent as data: agents store it. */
const heartbeatMs = 20_000;
const streamMsMax = 15 * 60_000;
/** The token is also checked before each page is sent. An idle stream whose token has ended sends nothing until it is closed. */
const checkMs = 5_000;
const retryMs = 1_000;
const pageMax = { limit: 100, bytesMax: 524_288 };

export interface EventStream {
  id: RequestId;
  request: FeedRequest;
  holder: SlotHolder;
  /** Checks the token in memory. @throws Problem */
  checkToken: () => Promise<unknown>;
  /** Adds what every result has. */
  complete: (result: Record<string, unknown>) => Record<string, unknown>;
  log: FastifyBaseLogger;
}

/** Open streams. One timer checks the tokens of all. */
export class EventStreams {
  readonly #feeds: Feeds;
  readonly #slots: StreamSlots;
  readonly #open = new Map<AbortController, () => Promise<unknown>>();
  #checks: NodeJS.Timeout | undefined;

  constructor(feeds: Feeds, slots: StreamSlots) {
    this.#feeds = feeds;
    this.#slots = slots;
  }

  /** @throws RpcError or Problem before the stream begins */
  async send(reply: FastifyReply, source: EventStream): Promise<void> {
    const stream = this.#slots.take(source.holder);
    try {
      const place = await this.#feeds.open(source.request);
      beginStream(reply, stream);
      const { raw } = reply;
      this.#watch(stream, source.checkToken);
      const channel = new Channel(raw, source, this.#feeds);
      await channel.run(stream.signal, place);
      if (!raw.destroyed) await endStream(raw, await channel.lastWords(place));
    } finally {
      this.#open.delete(stream);
      this.#slots.release(stream);
    }
  }

  #watch(stream: AbortController, checkToken: () => Promise<unknown>): void {
    this.#open.set(stream, checkToken);
    this.#checks ??= setInterval(() => this.#check(), checkMs).unref();
  }

  #check(): void {
    for (const [stream, checkToken] of this.#open) {
      checkToken().catch((error: unknown) => {
        // The database may be unreachable for a moment.
        if (error instanceof Problem && error.status < 500) stream.abort();
      });
    }
    if (this.#open.size > 0) return;
    clearInterval(this.#checks);
    this.#checks = undefined;
  }
}

/** One stream. */
class Channel {
  readonly #raw: FastifyReply['raw'];
  readonly #source: EventStream;
  readonly #feeds: Feeds;

  constructor(raw: FastifyReply['raw'], source: EventStream, feeds: Feeds) {
    this.#raw = raw;
    this.#source = source;
    this.#feeds = feeds;
  }

  /** Sends events until the stream or its lane ends. */
  async run(signal: AbortSignal, { lane, after, isTruncated }: FeedPlace): Promise<void> {
    const { request, log } = this.#source;
    const endsAt = performance.now() + streamMsMax;
    let through = after;
    let head = lane.head;
    const cursor = () =>
      this.#feeds.cursorAt(request, { lane: lane.lane, sequence: through, at: new Date() });
    this.#notify('active', { cursor: cursor(), truncated: isTruncated });
    while (!signal.aborted && performance.now() < endsAt) {
      if (through >= head && (await this.#isQuiet(lane.lane, through, signal))) {
        if (signal.aborted) return;
        this.#notify('heartbeat', { cursor: cursor() });
        continue;
      }
      try {
        await this.#source.checkToken();
        const page = await this.#feeds.read(lane, { after: through, ...pageMax });
        if (page === undefined) return;
        const shown = this.#feeds.show(request, lane.lane, page);
        if (shown.isTruncated) this.#notify('active', { cursor: cursor(), truncated: true });
        ({ through, head } = page);
        for (const occurrence of shown.events) this.#notify('event', { ...occurrence });
      } catch (err) {
        if (signal.aborted || (err instanceof Problem && err.status < 500)) return;
        log.warn({ err }, 'event stream could not read');
        await sleep(retryMs, undefined, { signal }).catch(() => {});
      }
      if (!(await hasRoom(this.#raw, signal))) return;
    }
  }

  /** Waits for an event. @returns whether none came in the time of a heartbeat */
  async #isQuiet(lane: number, after: number, signal: AbortSignal): Promise<boolean> {
    const begunAt = performance.now();
    await this.#feeds.watch.wait(lane, after, heartbeatMs, signal);
    return signal.aborted || performance.now() - begunAt >= heartbeatMs;
  }

  /** The text that ends the stream: why the lane has ended, and an empty result. */
  async lastWords({ lane }: FeedPlace): Promise<string> {
    const { id, complete, log } = this.#source;
    const end = await this.#feeds.endOf(lane).catch((err: unknown) => {
      log.warn({ err }, 'event stream ends for an unknown reason');
      return undefined;
    });
    const result = messageText({ jsonrpc: '2.0', id, result: complete({ _meta: this.#meta() }) });
    return end === undefined
      ? result
      : this.#notificationText(end.notification, { error: describeError(end.error) }) + result;
  }

  #notify(name: string, params: Record<string, unknown>): void {
    this.#raw.write(this.#notificationText(name, params));
  }

  #notificationText(name: string, params: Record<string, unknown>): string {
    const method = `notifications/events/${name}`;
    return messageText({ jsonrpc: '2.0', method, params: { ...params, _meta: this.#meta() } });
  }

  #meta(): Record<string, unknown> {
    return { [subscriptionIdKey]: this.#source.id };
  }
}

/** JSON has no line breaks here. */
function messageText(message: object): string {
  return `data: ${JSON.stringify(message)}\n\n`;
}
