/** `events/poll`: the events after a cursor, as one page. */

import { writtenMembers } from '../json_rpc.ts';
import { type FeedPlace, type FeedRequest, type Feeds, occurrenceText, readInteger } from './feed.ts';

const eventsMax = 500;
const eventsDefault = 100;
/** Bytes of bodies on a page. A single larger event comes alone. */
const pageBytesMax = 1_048_576;
/** How long agents should wait if there is nothing more, in milliseconds. */
const nextPollMs = 30_000;
const roundsMax = 3;

/**
 * @param params `maxEvents` is read here
 * @throws RpcError
 */
export async function poll(
  feeds: Feeds,
  request: FeedRequest,
  params: Readonly<Record<string, unknown>>,
): Promise<Record<string, unknown>> {
  const limit = readInteger('maxEvents', params.maxEvents, 1, eventsMax) ?? eventsDefault;
  for (let round = 0; round < roundsMax; round += 1) {
    const place = await feeds.open(request);
    const result = await readPage(feeds, request, place, limit);
    // The lane ended after it was found: the next round creates another, or learns why there is none.
    if (result !== undefined) return result;
  }
  throw feeds.busy();
}

async function readPage(
  feeds: Feeds,
  request: FeedRequest,
  { lane, after, isTruncated }: FeedPlace,
  limit: number,
): Promise<Record<string, unknown> | undefined> {
  const isLater = request.place !== null && lane.head > after;
  const page = isLater ? await feeds.read(lane, { after, limit, bytesMax: pageBytesMax }) : null;
  if (page === undefined) return undefined;
  const shown = page && feeds.show(request, lane.lane, page);
  const through = page?.through ?? after;
  const isSame = request.place?.lane === lane.lane && request.place.sequence === through;
  const cursor = isSame
    ? request.place?.cursor
    : feeds.cursorAt(request, { lane: lane.lane, sequence: through, at: lane.now });
  const events = shown?.events.map((each) => occurrenceText(each)).join(',') ?? '';
  return {
    [writtenMembers]: { events: `[${events}]` },
    cursor,
    truncated: isTruncated || (shown?.isTruncated ?? false),
    hasMore: through < (page?.head ?? lane.head) || (lane.isReplaying && request.place !== null),
    nextPollMs,
  };
}
