/** The delivery log: `/subscriptions/<id>/deliveries` and `/deliveries`. */

import Type from 'typebox';
import { ListTurns } from '../../collections/list_turns.ts';
import { isId } from '../../crypto/ids.ts';
import { acceptsEventStream } from '../../http/api.ts';
import {
  createdHeaders,
  emptyBody,
  idParameter,
  keyParameter,
  ok,
  page,
  pageParameters,
  queryParameter,
} from '../../http/describe.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, StringEnum, strict, Time } from '../../http/schema.ts';
import { holderOf, type StreamSlots } from '../../http/stream_slots.ts';
import { readTime } from '../../http/time.ts';
import {
  attemptsMax,
  type Delivery,
  type DeliveryStatus,
  deliveryStatuses,
  findDelivery,
} from '../../webhooks/log/delivery.ts';
import { readDelivery } from '../../webhooks/log/delivery_details.ts';
import {
  type DeliveryFilter,
  listDeliveries,
  scannedByKindMax,
  scannedMax,
} from '../../webhooks/log/delivery_list.ts';
import { resendDelivery } from '../../webhooks/log/resend.ts';
import { ownerOf } from '../../webhooks/subscriptions/owner.ts';
import { token } from '../admission.ts';
import { route, serve } from '../route.ts';
import { detailsText, representDelivery } from './delivery_representation.ts';
import { DeliveryStreams, watchedMax } from './delivery_stream.ts';
import { sendIdempotentForOwner } from './idempotency.ts';
import { readFromLog } from './log_reads.ts';
import { reader, writer } from './owner_admission.ts';
import { AttemptError, deliveryMembers, mapOf, milliseconds } from './schemas.ts';
import { requireSubscription, type WebhookRoutesOptions } from './subscription_access.ts';

const DeliveryShown = named('Delivery', Type.Object(deliveryMembers, strict));

const AttemptShown = named(
  'Attempt',
  Type.Object(
    {
      number: Type.Integer({ minimum: 1 }),
      trigger: StringEnum('schedule', 'manual', 'recovery'),
      at: Time(),
      duration_ms: milliseconds,
      timings: Type.Object(
        { dns_ms: milliseconds, connect_ms: milliseconds, tls_ms: milliseconds, first_byte_ms: milliseconds },
        { ...strict, description: 'Null for a step that an existing connection did not need.' },
      ),
      connection: Nullable(StringEnum('kept', 'new, IPv4', 'new, IPv6')),
      status: Nullable(Type.Integer()),
      error: Nullable(AttemptError()),
      error_detail: Nullable(Type.String({ description: 'The error in words.' })),
      revision: Type.Integer({
        minimum: 1,
        description: 'The revision of the subscription that the attempt used.',
      }),
      request: Nullable(
        Type.Object({ method: Type.String(), url: Type.String(), headers: mapOf(Type.String()) }, strict),
      ),
      response: Nullable(
        Type.Object(
          {
            headers: mapOf(Type.Union([Type.String(), Type.Array(Type.String())])),
            body: Type.String(),
            encoding: StringEnum('utf-8', 'base64'),
            truncated: Type.Boolean(),
          },
          strict,
        ),
      ),
      response_omitted: Type.Optional(
        Type.Boolean({
          description:
            'Whether the response is not stored or not shown: the account’s daily quota of response bytes was used up, too many of its responses waited to be stored, the deployment keeps responses for fewer days than deliveries, or the responses of later attempts have 256 KiB as JSON.',
        }),
      ),
    },
    strict,
  ),
);

const DeliveryWithAttempts = named(
  'DeliveryDetails',
  Type.Object({ ...deliveryMembers, body: Type.Any(), attempts: Type.Array(AttemptShown) }, strict),
);

const tag = 'deliveries';

/**
 * Pages of the log that are read at once. A page can scan thousands of deliveries, and a stream reads one every second. Those of a few accounts
 * would take all connections of the log, so one is read after the other. The others are for events that are pulled, and for health.
 */
const pagesAtOnce = 1;

export const deliveryRoutes = {
  list: route({
    id: 'list_deliveries',
    method: 'get',
    path: '/subscriptions/{id}/deliveries',
    tag,
    summary: 'List deliveries',
    description:
      'The newest come first. With `Accept: text/event-stream` the newest 100 come as server-sent events, the oldest of them first, and then each delivery that is new or has changed: `event: delivery`, `id` (the sequence), `data` (a delivery as in the list). The last event is `end`, with the reason.',
    admission: token('read:webhooks'),
    parameters: [
      idParameter('subscription'),
      ...pageParameters,
      queryParameter(
        'status',
        'Only deliveries in this state. `failing`: those that are pending after a failed attempt.',
        StringEnum(...deliveryStatuses),
      ),
      queryParameter('kind', 'Only deliveries of this kind.', Type.String()),
      queryParameter('since', 'Only deliveries created at this time or later.', Time()),
      queryParameter('until', 'Only deliveries created before this time.', Time()),
      queryParameter('id', 'Only the delivery with this id.', Id()),
    ],
    responses: page(
      `A page. It scans at most ${scannedMax} deliveries, and at most ${scannedByKindMax} failing, failed or cancelled ones of a \`kind\`. With \`status\` or \`kind\` a page may be shorter than \`limit\`, or empty, and still have \`next\`.`,
      DeliveryShown,
    ),
    streamsEvents: true,
  }),
  read: route({
    id: 'read_delivery',
    method: 'get',
    path: '/deliveries/{id}',
    tag,
    summary: 'Read a delivery',
    description: 'Includes the body and the newest 100 attempts.',
    admission: reader,
    parameters: [idParameter('delivery')],
    responses: ok('The delivery.', DeliveryWithAttempts),
  }),
  resend: route({
    id: 'resend_delivery',
    method: 'post',
    path: '/deliveries/{id}/resend',
    tag,
    summary: 'Resend a delivery',
    description:
      'Sends the delivery again with the same id. One without a finished attempt is not sent twice: it is being sent, or waits for it. One with 1,000 attempts is not sent any more.',
    admission: writer,
    parameters: [idParameter('delivery'), keyParameter],
    body: emptyBody,
    responses: {
      202: { description: 'The delivery is due.', schema: DeliveryShown, headers: createdHeaders },
    },
    problems: [409],
  }),
};

/** @param slots of all live streams */
export function registerDeliveries(options: WebhookRoutesOptions, slots: StreamSlots): void {
  const { db, logDb, guard, headerNames, webhookId, presenter, catalogue } = options;
  const names = { headers: headerNames, webhookId };
  const scopeOf = (kind: string) => {
    const object = catalogue.kinds.get(kind)?.object ?? null;
    return object === null ? null : `read:${object}`;
  };
  const streams = new DeliveryStreams(slots);
  const turns = new ListTurns('the delivery log', pagesAtOnce);

  serve(options, deliveryRoutes.list, async ({ request, reply, caller, params: { id } }) => {
    const subscription = await requireSubscription(db, ownerOf(caller, 'read'), id);
    const page = readPage(request, ['status', 'kind', 'since', 'until', 'id']);
    const filter = readFilter(page.parameters);
    const list = async (limit: number, before: number | null, signal?: AbortSignal) => {
      const read = () => listDeliveries(logDb, subscription, filter, limit, before);
      const found = await turns.run(caller, () => readFromLog(read()), signal);
      // The page may have waited for its turn. The token, a membership or the subscription may have ended since.
      await requireSubscription(db, ownerOf(await guard(request, 'read:webhooks'), 'read'), id);
      return found;
    };
    if (acceptsEventStream(request)) {
      const poll = async (signal: AbortSignal) => {
        const { deliveries } = await list(watchedMax, null, signal);
        return deliveries.map((delivery) => ({
          ...representDelivery(delivery),
          id: delivery.id,
          sequence: delivery.sequence,
        }));
      };
      return streams.send(request, reply, { poll, ...holderOf(caller) });
    }
    if (page.after !== null && !/^\d{1,15}$/.test(page.after)) throw page.invalid();
    const before = page.after === null ? null : Number(page.after);
    const { deliveries, more } = await list(page.limit + 1, before);
    const key = ({ sequence }: Delivery) => String(sequence);
    return sendPage(
      request,
      reply,
      page,
      deliveries,
      representDelivery,
      key,
      more === null ? null : String(more),
    );
  });

  serve(options, deliveryRoutes.read, async ({ reply, caller: owner, params: { id } }) => {
    const delivery = await requireDelivery(
      readFromLog(readDelivery(logDb, owner, id, names, presenter, scopeOf)),
    );
    return reply.type('application/json; charset=utf-8').send(detailsText(delivery));
  });

  serve(options, deliveryRoutes.resend, async ({ request, reply, caller: owner, params: { id } }) =>
    sendIdempotentForOwner(options, request, reply, owner, async (tx) => {
      switch (await resendDelivery(tx, owner, id)) {
        case 'not-found':
          throw notFound();
        case 'pulled':
          throw new Problem(409, 'The subscription has no URL: read its events again.', {
            code: 'pull-only',
          });
        case 'disabled':
          throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
        case 'cancelled':
          throw new Problem(
            409,
            'The delivery was cancelled because its owner lost the right to it, or the subscription its kind.',
            {
              code: 'delivery-cancelled',
            },
          );
        case 'attempted':
          throw new Problem(409, `The delivery has ${attemptsMax} attempts.`, { code: 'too-many-attempts' });
        case 'due': {
          // Not its body: that may have to be converted, and this is a transaction.
          const delivery = await requireDelivery(findDelivery(tx, owner, id));
          const headers = { location: `/deliveries/${id}` };
          return { status: 202, headers, body: JSON.stringify(representDelivery(delivery)) };
        }
      }
    }),
  );
}

/** @throws Problem 400 */
function readFilter(parameters: Readonly<Record<string, string>>): DeliveryFilter {
  const { status, kind, since, until, id } = parameters;
  const wrong = (detail: string) => new Problem(400, detail, { code: 'invalid-parameter' });
  if (status !== undefined && !deliveryStatuses.includes(status as DeliveryStatus)) {
    throw wrong(`status must be one of ${deliveryStatuses.join(', ')}.`);
  }
  const [from, to] = [since, until].map((text) => (text === undefined ? null : readTime(text)));
  if (from === undefined) throw wrong('since must be an RFC 3339 time.');
  if (to === undefined) throw wrong('until must be an RFC 3339 time.');
  if (id !== undefined && !isId(id)) throw wrong('id must be a delivery id.');
  return {
    status: (status ?? null) as DeliveryStatus | null,
    kind: kind ?? null,
    since: from,
    until: to,
    id: id ?? null,
  };
}

async function requireDelivery<Found extends Delivery>(found: Promise<Found | undefined>): Promise<Found> {
  const delivery = await found;
  if (delivery === undefined) throw notFound();
  return delivery;
}

function notFound(): Problem {
  return new Problem(404, 'Delivery not found.');
}
