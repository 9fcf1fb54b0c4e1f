/**
 * `events/stream`: events as they come, as messages of the protocol in server-sent events.
 *
 *   active → event … → heartbeat … → active (truncated: events are lost) → … → terminated (access revoked) | error (suspended)
 *   → empty result (token, time, shutdown) | connection closed
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify';
import { asServer } from '../../database/connection_user.ts';
import { isOverloaded } from '../../http/overload/refusal.ts';
import { workForStream } from '../../http/overload/request_place.ts';
import { Problem } from '../../http/problem.ts';
import { beginStream, endStream, hasRoom } from '../../http/stream_response.ts';
import type { SlotHolder, StreamSlots } from '../../http/stream_slots.ts';
import type { RequestId } from '../json_rpc.ts';
import { subscriptionIdKey } from '../protocol.ts';
import { describeError } from './errors.ts';
import { type FeedPlace, type FeedRequest, type Feeds, type Occurrence, occurrenceText } from './feed.ts';

/** At least every 30 seconds, the cursor is sent as data: agents store it. */
const heartbeatMs = 20_000;
const streamMsMax = 15 * 60_000;
/** How often the streams are looked at. */
const tickMs = 1_000;
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

/** Open streams. One timer serves all. */
export class EventStreams {
  readonly #feeds: Feeds;
  readonly #slots: StreamSlots;
  readonly #open = new Set<Channel>();
  #timer: NodeJS.Timeout | undefined;

  constructor(feeds: Feeds, slots: StreamSlots) {
    this.#feeds = feeds;
    this.#slots = slots;
  }

  /**
   * Begins a stream, which continues by itself.
   * @throws RpcError or Problem before it begins
   */
  async send(reply: FastifyReply, source: EventStream): Promise<void> {
    const stream = this.#slots.take(source.holder);
    try {
      const place = await this.#feeds.open(source.request);
      beginStream(reply, stream);
      const channel = new Channel(reply, stream, source, this.#feeds, place, () => {
        this.#open.delete(channel);
        this.#slots.release(stream);
      });
      this.#open.add(channel);
      this.#timer ??= setInterval(() => asServer(() => this.#tick()), tickMs).unref();
      channel.begin(place.isTruncated);
    } catch (error) {
      this.#slots.release(stream);
      throw error;
    }
  }

  #tick(): void {
    const now = performance.now();
    for (const channel of this.#open) channel.tick(now);
    if (this.#open.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

/** One stream. Between events it is only this object, without timers and promises. */
class Channel {
  readonly #request: FastifyRequest;
  readonly #raw: FastifyReply['raw'];
  readonly #stream: AbortController;
  readonly #source: EventStream;
  readonly #feeds: Feeds;
  readonly #lane: Pick<FeedPlace['lane'], 'id' | 'lane'>;
  readonly #onEnd: () => void;
  #through: number;
  #head: number;
  readonly #endsAt: number;
  /** When something was last sent, and when the token was last checked. */
  #sentAt: number;
  #checkedAt: number;
  /** While it waits for events. */
  #stopWatching: (() => void) | undefined;

  constructor(
    { request, raw }: FastifyReply,
    stream: AbortController,
    source: EventStream,
    feeds: Feeds,
    { lane: { id, lane, head }, after }: FeedPlace,
    onEnd: () => void,
  ) {
    this.#request = request;
    this.#raw = raw;
    this.#stream = stream;
    this.#source = source;
    this.#feeds = feeds;
    this.#lane = { id, lane };
    this.#through = after;
    this.#head = head;
    this.#onEnd = onEnd;
    const now = performance.now();
    this.#endsAt = now + streamMsMax;
    this.#sentAt = now;
    this.#checkedAt = now;
  }

  begin(isTruncated: boolean): void {
    this.#notify('active', { cursor: this.#cursor(), truncated: isTruncated });
    // A stream that sends events ends after them.
    this.#stream.signal.addEventListener('abort', () => this.#stopWatching !== undefined && void this.#end());
    if (this.#through < this.#head || this.#stream.signal.aborted) void this.#sendEvents();
    else this.#wait();
  }

  /** Is called once a second. */
  tick(now: number): void {
    if (now >= this.#endsAt) this.#stream.abort();
    if (now - this.#checkedAt >= checkMs) {
      this.#checkedAt = now;
      this.#source.checkToken().catch((error: unknown) => {
        // The database may be unreachable for a moment.
        if (isRefusal(error)) this.#stream.abort();
      });
    }
    if (this.#stopWatching === undefined || now - this.#sentAt < heartbeatMs) return;
    this.#notify('heartbeat', { cursor: this.#cursor() });
  }

  #wait(): void {
    const place = { lane: this.#lane.lane, after: this.#through, holder: this.#source.holder };
    this.#stopWatching = this.#feeds.watch.watch(place, () => {
      this.#stopWatching = undefined;
      void this.#sendEvents();
    });
  }

  /** Sends what is new, and then waits, or ends. */
  async #sendEvents(): Promise<void> {
    const { signal } = this.#stream;
    while (!signal.aborted) {
      const isOpen = (await this.#sendPage()) && (await hasRoom(this.#raw, signal));
      if (!isOpen) break;
      if (this.#through >= this.#head) return this.#wait();
    }
    await this.#end();
  }

  /** @returns whether the stream continues */
  async #sendPage(): Promise<boolean> {
    const { request, checkToken, log } = this.#source;
    const { signal } = this.#stream;
    try {
      const page = await workForStream(this.#request, signal, async () => {
        await checkToken();
        return this.#feeds.read(this.#lane, { after: this.#through, ...pageMax, signal });
      });
      if (page === undefined) return false;
      const shown = this.#feeds.show(request, this.#lane.lane, page);
      if (shown.isTruncated) this.#notify('active', { cursor: this.#cursor(), truncated: true });
      this.#through = page.through;
      this.#head = page.head;
      for (const occurrence of shown.events) this.#sendEvent(occurrence);
    } catch (err) {
      if (signal.aborted || isRefusal(err)) return false;
      if (!isOverloaded(err)) log.warn({ err }, 'event stream could not read');
      await sleep(retryMs, undefined, { signal }).catch(() => {});
    }
    return true;
  }

  async #end(): Promise<void> {
    this.#stopWatching?.();
    this.#stopWatching = undefined;
    try {
      if (!this.#raw.destroyed) await endStream(this.#raw, await this.#lastWords());
    } catch (err) {
      this.#source.log.error({ err }, 'event stream did not end as it should');
      this.#raw.destroy();
    } finally {
      this.#onEnd();
    }
  }

  /** The text that ends the stream: why the lane has ended, and an empty result. */
  async #lastWords(): Promise<string> {
    const { id, complete, log } = this.#source;
    const end = await this.#feeds.endOf(this.#lane).catch((err: unknown) => {
      log.warn({ err }, 'event stream ends for an unknown reason');
      return undefined;
    });
    const result = messageText({ jsonrpc: '2.0', id, result: complete({ _meta: this.#meta() }) });
    return end === undefined
      ? result
      : this.#notificationText(end.notification, { error: describeError(end.error) }) + result;
  }

  #cursor(): string {
    const place = { lane: this.#lane.lane, sequence: this.#through, at: new Date() };
    return this.#feeds.cursorAt(this.#source.request, place);
  }

  #notify(name: string, params: Record<string, unknown>): void {
    this.#sentAt = performance.now();
    this.#raw.write(this.#notificationText(name, params));
  }

  #sendEvent(occurrence: Occurrence): void {
    this.#sentAt = performance.now();
    const params = occurrenceText(occurrence, { _meta: this.#meta() });
    this.#raw.write(dataText(`{"jsonrpc":"2.0","method":"notifications/events/event","params":${params}}`));
  }

  #notificationText(name: string, params: Record<string, unknown>): string {
    const method = `notifications/events/${name}`;
    return messageText({ jsonrpc: '2.0', method, params: { ...params, _meta: this.#meta() } });
  }

  #meta(): Record<string, unknown> {
    return { [subscriptionIdKey]: this.#source.id };
  }
}

/** Whether the token is refused. */
function isRefusal(error: unknown): boolean {
  return error instanceof Problem && error.status < 500;
}

function messageText(message: object): string {
  return dataText(JSON.stringify(message));
}

/** A body may have line breaks between its tokens. Each line is a `data` line. */
function dataText(json: string): string {
  return `data: ${json.replaceAll(/\r\n|\r|\n/g, '\ndata: ')}\n\n`;
}
