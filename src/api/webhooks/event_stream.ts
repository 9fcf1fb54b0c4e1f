/**
 * A subscription's events as server-sent events. Each item is a message whose id is its sequence. The stream reads the next page only
 * when the client has taken most of the last one, so it buffers at most `unreadBytesMax` and one page.
 *
 *   opened → page → (client is slow) wait for it | (nothing new) wait, comments as heartbeats → page …
 *   → terminated (subscription ended or disabled) | end (token, time, shutdown, displaced) | connection closed
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { isOverloaded } from '../../http/overload/refusal.ts';
import { workForStream } from '../../http/overload/request_place.ts';
import { Problem } from '../../http/problem.ts';
import { beginStream, endStream, hasRoom } from '../../http/stream_response.ts';
import { displaced, type SlotHolder } from '../../http/stream_slots.ts';
import type { EventPage, EventReader, ReadResult } from '../../webhooks/reader/event_reader.ts';
import type { LaneWatch } from '../../webhooks/reader/lane_watch.ts';
import type { Subscription } from '../../webhooks/subscriptions/subscription.ts';
import { itemText } from './pulled_page.ts';

const heartbeatMs = 15_000;
const streamMsMax = 15 * 60_000;
const checkMs = 1_000;
const streamedPage = { limit: 200, bytesMax: 524_288 };

export interface EventStreamSource {
  reader: EventReader;
  watch: LaneWatch;
  subscription: Subscription;
  holder: SlotHolder;
  /** The first page. */
  first: EventPage;
  /** Checks the token in memory. @throws Problem 401 */
  checkToken: () => Promise<unknown>;
  /** Checks the token and whose subscription it is. @throws Problem 401, 403 or 404 */
  checkOwner: () => Promise<Subscription>;
}

/** Sends events until the stream ends. @param stream aborts when the server stops */
export async function streamEvents(
  request: FastifyRequest,
  reply: FastifyReply,
  stream: AbortController,
  source: EventStreamSource,
): Promise<void> {
  beginStream(reply, stream);
  const { raw } = reply;
  let isRefused = false;
  const timer = setInterval(() => {
    source.checkToken().catch((error) => {
      if (!(error instanceof Problem) || error.status >= 500) return;
      isRefused = true;
      stream.abort();
    });
  }, checkMs);
  try {
    const last = await run(request, raw, stream.signal, source);
    if (!raw.destroyed) await endStream(raw, endText(isRefused ? await refusal(source) : last));
  } finally {
    clearInterval(timer);
  }
}

type LastEvent = { event: 'terminated' | 'end'; reason: string };

function endText({ event, reason }: LastEvent): string {
  return `event: ${event}\ndata: ${JSON.stringify({ reason })}\n\n`;
}

/** The server stops, or the place is needed. */
function ended({ reason }: AbortSignal): LastEvent {
  return { event: 'end', reason: reason === displaced ? displaced : 'shutdown' };
}

async function run(
  request: FastifyRequest,
  raw: FastifyReply['raw'],
  signal: AbortSignal,
  source: EventStreamSource,
): Promise<LastEvent> {
  const { reader, watch, subscription, holder, first } = source;
  const endsAt = performance.now() + streamMsMax;
  for (let page = first; !signal.aborted; ) {
    const text = pageText(page);
    if (text !== '') raw.write(text);
    if (!(await hasRoom(raw, signal))) break;
    while (page.through >= page.head && !signal.aborted) {
      const begunAt = performance.now();
      const place = { lane: subscription.lane, after: page.through, holder };
      await watch.wait(place, heartbeatMs, signal);
      if (performance.now() > endsAt) return { event: 'end', reason: 'time' };
      if (performance.now() - begunAt < heartbeatMs) break;
      raw.write(': heartbeat\n\n');
    }
    if (signal.aborted) break;
    if (performance.now() > endsAt) return { event: 'end', reason: 'time' };
    try {
      const { through } = page;
      const result = await workForStream<ReadResult>(request, signal, async () => {
        await source.checkOwner();
        return reader.read(subscription, { after: through, ...streamedPage, signal });
      });
      if (result === undefined) break;
      // A failover may have lost the newest deliveries: the client must ask again.
      if (result.kind === 'ahead') return { event: 'end', reason: 'ahead' };
      if (result.kind === 'terminated') return await refusal(source);
      page = result;
    } catch (error) {
      if (error instanceof Problem && error.status < 500) return await refusal(source);
      if (!isOverloaded(error)) request.log.warn({ err: error }, 'event stream could not read');
      page = { ...page, items: [], gaps: [] };
      await sleep(checkMs, undefined, { signal }).catch(() => {});
    }
  }
  return ended(signal);
}

/** Why the caller gets no more: the subscription ended or is disabled, or only the token has. */
async function refusal({ reader, subscription, checkOwner }: EventStreamSource): Promise<LastEvent> {
  try {
    const { state } = await checkOwner();
    return { event: 'terminated', reason: state === 'disabled' ? 'disabled' : 'suspended' };
  } catch (error) {
    const { status } = error as Partial<Problem>;
    if (status === 404) return { event: 'terminated', reason: 'ended' };
  }
  const result = await reader.read(subscription, { after: 0, limit: 0 }).catch(() => undefined);
  return result?.kind === 'terminated'
    ? { event: 'terminated', reason: 'ended' }
    : { event: 'end', reason: 'token' };
}

function pageText({ items, gaps }: EventPage): string {
  const entries = [
    ...items.map((item) => ({ at: item.sequence, text: messageText('', item.sequence, itemText(item)) })),
    ...gaps.map((gap) => ({ at: gap.through, text: messageText('gap', gap.through, JSON.stringify(gap)) })),
  ];
  entries.sort((one, other) => one.at - other.at);
  return entries.map(({ text }) => text).join('');
}

/** JSON may contain line breaks between its tokens. Each line is a `data` line. */
function messageText(event: string, id: number, data: string): string {
  const name = event === '' ? '' : `event: ${event}\n`;
  return `${name}id: ${id}\ndata: ${data.replaceAll(/\r\n|\r|\n/g, '\ndata: ')}\n\n`;
}
