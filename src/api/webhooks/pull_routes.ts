/** Pull: `GET /subscriptions/<id>/events` gives the events after a sequence, as pages or as server-sent events. */

import type { FastifyRequest } from 'fastify';
import Type from 'typebox';
import { acceptsEventStream } from '../../http/api.ts';
import { idParameter, jsonBody, links, ok, queryParameter } from '../../http/describe.ts';
import type { Parameter } from '../../http/operation.ts';
import { withoutPlace } from '../../http/overload/request_place.ts';
import { ErrorList, Problem } from '../../http/problem.ts';
import { Id, Nullable, named, StringEnum, strict, Time } from '../../http/schema.ts';
import { holderOf, StreamSlots } from '../../http/stream_slots.ts';
import { acknowledge } from '../../webhooks/reader/acknowledgement.ts';
import type { EventPage, EventReader, ReadResult } from '../../webhooks/reader/event_reader.ts';
import { ownerOf } from '../../webhooks/subscriptions/owner.ts';
import type { Subscription } from '../../webhooks/subscriptions/subscription.ts';
import { token } from '../admission.ts';
import { route, serve } from '../route.ts';
import { streamEvents } from './event_stream.ts';
import { readFromLog } from './log_reads.ts';
import { pageText } from './pulled_page.ts';
import { AcknowledgementShown, mapOf } from './schemas.ts';
import { requireOwnSubscription, type WebhookRoutesOptions } from './subscription_access.ts';
import { representAcknowledgement } from './subscription_representation.ts';

const limitMax = 1_000;
const limitDefault = 100;
const waitSecondsMax = 60;
/** More than any subscription gets. */
const sequenceMax = 999_999_999_999_999;
/** Requests that wait cost little: no statement of their own. */
const waitLimits = { token: 200, owner: 200, app: 1_000, node: 2_000 };

const Sequence = () => Type.Integer({ minimum: 1 });

const PulledEvent = Type.Object(
  {
    sequence: Sequence(),
    id: Type.String({ description: 'The id of the event.' }),
    kind: Type.String(),
    created_at: Time(),
    account: Nullable(Id()),
    headers: mapOf(Type.String()),
    body: Type.Any(),
  },
  strict,
);

const PulledGap = Type.Object(
  { from: Sequence(), through: Sequence(), reason: StringEnum('expired', 'cancelled', 'failed') },
  strict,
);

const PulledEvents = named(
  'PulledEvents',
  Type.Object(
    { items: Type.Array(PulledEvent, { maxItems: limitMax }), gaps: Type.Array(PulledGap), _links: links },
    strict,
  ),
);

const AcknowledgementGiven = named(
  'AcknowledgementGiven',
  Type.Object({ sequence: Type.Integer({ minimum: 1, maximum: sequenceMax }) }, strict),
);

const lastEventId: Parameter = {
  name: 'Last-Event-ID',
  in: 'header',
  description:
    'With `Accept: text/event-stream`: the sequence after which to resume. Takes precedence over `after`.',
  schema: Type.String({ pattern: '^\\d{0,15}$' }),
};

export const pullRoutes = {
  events: route({
    id: 'read_subscription_events',
    method: 'get',
    path: '/subscriptions/{id}/events',
    tag: 'subscriptions',
    summary: 'Read events',
    description:
      'The events after a sequence, in order, with the headers and bodies of their deliveries. Every sequence is among the items or in a gap: `expired` if it is older than the retention, `cancelled` if it was erased or the owner has no right to it, `failed` if it could not be converted to the version of the subscription: read it again later. `next` is on every page; request it again to get what is new. With `Accept: text/event-stream`, each item is a server-sent event whose `id` is its sequence; `event: gap` tells of gaps, `event: terminated` that the subscription ended or is disabled, and `event: end` that the stream ended for another reason and can be resumed.',
    admission: token('read:webhooks'),
    parameters: [
      idParameter('subscription'),
      queryParameter('after', 'The last sequence that was read.', Type.Integer({ minimum: 0, default: 0 })),
      queryParameter(
        'limit',
        'The maximum number of items on the page. Large bodies make it shorter, and so do conversions to an earlier version.',
        Type.Integer({ minimum: 1, maximum: limitMax, default: limitDefault }),
      ),
      queryParameter(
        'wait',
        'Seconds to wait for the first event if there is none.',
        Type.Integer({ minimum: 0, maximum: waitSecondsMax, default: 0 }),
      ),
      lastEventId,
    ],
    responses: ok('A page. It may be empty.', PulledEvents, ['Link']),
    streamsEvents: true,
    problems: [400, 409, 429],
  }),
  acknowledge: route({
    id: 'acknowledge_events',
    method: 'post',
    path: '/subscriptions/{id}/ack',
    tag: 'subscriptions',
    summary: 'Acknowledge events',
    description:
      'Says that everything up to a sequence was read. It only informs: the subscription, the console and a metric show it. An earlier sequence changes nothing.',
    admission: token('read:webhooks'),
    parameters: [idParameter('subscription')],
    body: jsonBody(AcknowledgementGiven, { sequence: 42 }),
    responses: ok('The last acknowledged sequence.', AcknowledgementShown),
  }),
};

interface PullQuery {
  after: number;
  limit: number;
  wait: number;
}

/** @param slots of all live streams */
export function registerPull(options: WebhookRoutesOptions, slots: StreamSlots): void {
  const { api, db, guard, reader, watch } = options;
  const waits = new StreamSlots(api, { limits: waitLimits, noun: 'waiting requests' });
  registerAcknowledge(options);

  serve(options, pullRoutes.events, async ({ request, reply, caller, params: { id } }) => {
    const checkOwner = async () =>
      requireOwnSubscription(db, ownerOf(await guard(request, 'read:webhooks'), 'read'), id);
    const subscription = await requireOwnSubscription(db, ownerOf(caller, 'read'), id);
    const query = readQuery(request);
    const resumedAfter = readLastEventId(request);
    const holder = holderOf(caller);
    if (acceptsEventStream(request)) {
      const after = resumedAfter ?? query.after;
      const stream = slots.take(holder);
      try {
        // An error before the first event is an ordinary error response.
        const first = await readEvents(reader, subscription, { ...query, after });
        const checkToken = () => guard(request, 'read:webhooks');
        await streamEvents(request, reply, stream, {
          reader,
          watch,
          subscription,
          holder,
          first,
          checkToken,
          checkOwner,
        });
      } finally {
        slots.release(stream);
      }
      return reply;
    }
    let page = await readEvents(reader, subscription, query);
    if (page.through === query.after && query.wait > 0) {
      const slot = waits.take(holder);
      reply.raw.on('close', () => slot.abort());
      if (reply.raw.destroyed) slot.abort();
      try {
        const place = { lane: subscription.lane, after: query.after, holder };
        await withoutPlace(request, () => watch.wait(place, query.wait * 1_000, slot.signal));
      } finally {
        waits.release(slot);
      }
      // The token, the membership or the subscription may have ended since.
      page = await readEvents(reader, await checkOwner(), query);
    }
    const path = request.url.split('?', 1)[0];
    const parameters = { after: page.through, limit: query.limit, wait: query.wait };
    const next = `${path}?${new URLSearchParams(Object.entries(parameters).map(([name, value]) => [name, String(value)]))}`;
    return reply
      .header('link', `<${next}>; rel="next"`)
      .type('application/json; charset=utf-8')
      .send(pageText(page, request.url, next));
  });
}

function registerAcknowledge(options: WebhookRoutesOptions): void {
  const { db } = options;
  serve(options, pullRoutes.acknowledge, async ({ caller, params: { id }, body: { sequence } }) => {
    const { lane } = await requireOwnSubscription(db, ownerOf(caller, 'read'), id);
    const result = await acknowledge(db, lane, sequence);
    if (result.kind === 'acknowledged') return representAcknowledgement(result);
    const errors = new ErrorList();
    errors.add(['sequence'], `is beyond the newest sequence, ${result.head}`, 'invalid-cursor');
    return errors.raise();
  });
}

/** @throws Problem 400 if there is no such sequence, 409 if the subscription is disabled, 404 if it has ended */
async function readEvents(
  reader: EventReader,
  subscription: Subscription,
  { after, limit }: PullQuery,
): Promise<EventPage> {
  const result: ReadResult = await readFromLog(reader.read(subscription, { after, limit }));
  if (result.kind === 'page') return result;
  if (result.kind === 'ahead') {
    throw new Problem(400, `The newest sequence of this subscription is ${result.head}.`, {
      code: 'invalid-cursor',
    });
  }
  throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
}

/** @throws Problem 400 */
function readQuery(request: FastifyRequest): PullQuery {
  const query = request.query as Record<string, unknown>;
  const unknown = Object.keys(query).find((name) => !['after', 'limit', 'wait'].includes(name));
  if (unknown !== undefined) throw wrong(`${unknown} is not a parameter of this resource.`);
  const read = (name: string, min: number, max: number, fallback: number): number => {
    const text = query[name];
    if (text === undefined) return fallback;
    const value = typeof text === 'string' && /^\d{1,15}$/.test(text) ? Number(text) : -1;
    if (value < min || value > max) throw wrong(`${name} must be an integer from ${min} to ${max}.`);
    return value;
  };
  return {
    after: read('after', 0, sequenceMax, 0),
    limit: read('limit', 1, limitMax, limitDefault),
    wait: read('wait', 0, waitSecondsMax, 0),
  };
}

/** @throws Problem 400 */
function readLastEventId({ headers }: FastifyRequest): number | undefined {
  const text = headers['last-event-id'];
  if (text === undefined || text === '') return undefined;
  if (typeof text === 'string' && /^\d{1,15}$/.test(text)) return Number(text);
  throw new Problem(400, 'Last-Event-ID must be the sequence of an event of this subscription.', {
    code: 'invalid-cursor',
  });
}

function wrong(detail: string): Problem {
  return new Problem(400, detail, { code: 'invalid-parameter' });
}
