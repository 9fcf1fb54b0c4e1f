/** The delivery log: `/subscriptions/<id>/deliveries` and `/deliveries`. */

import type { FastifyInstance } from 'fastify';
import { isId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import type { Guard } from '../../grants/principal.ts';
import { acceptsEventStream } from '../../http/api.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { readTime } from '../../http/time.ts';
import { describeError } from '../lanes/outcome_policy.ts';
import { type Delivery, type DeliveryStatus, deliveryStatuses } from '../log/delivery.ts';
import { type Attempt, type DeliveryDetails, readDelivery } from '../log/delivery_details.ts';
import { type DeliveryFilter, listDeliveries } from '../log/delivery_list.ts';
import { resendDelivery } from '../log/resend.ts';
import type { HeaderNames } from '../sending/header_names.ts';
import { requireEmptyBody } from '../subscriptions/subscription_body.ts';
import { DeliveryStreams, watchedMax } from './delivery_stream.ts';
import { sendIdempotentForOwner } from './idempotency.ts';
import { readFromLog } from './log_reads.ts';
import { ownerOf, requireSubscription } from './subscription_routes.ts';

export interface DeliveryRoutesOptions {
  api: FastifyInstance;
  db: Database;
  /** Used to read the log. */
  logDb: Database;
  guard: Guard;
  sealer: Sealer;
  headerNames: HeaderNames;
  catalogue: Catalogue;
}

interface IdRoute {
  Params: { id: string };
}

export function registerDeliveries(options: DeliveryRoutesOptions): void {
  const { api, db, logDb, guard, headerNames, catalogue } = options;
  const scopeOf = (kind: string) => {
    const object = catalogue.kinds.get(kind)?.object ?? null;
    return object === null ? null : `read:${object}`;
  };
  const streams = new DeliveryStreams(api);
  const streamed = { config: { streamsEvents: true } };
  api.get<IdRoute>('/subscriptions/:id/deliveries', streamed, async (request, reply) => {
    const principal = await guard(request, 'read:webhooks');
    const owner = ownerOf(principal, 'read');
    const subscription = await requireSubscription(db, owner, request.params.id);
    const page = readPage(request, ['status', 'kind', 'since', 'until', 'id']);
    const filter = readFilter(page.parameters);
    if (acceptsEventStream(request)) {
      const { id } = request.params;
      const poll = async () => {
        // The token, a membership or the subscription may have ended since.
        const now = ownerOf(await guard(request, 'read:webhooks'), 'read');
        const current = await requireSubscription(db, now, id);
        const { deliveries } = await readFromLog(listDeliveries(logDb, current, filter, watchedMax, null));
        return deliveries.map((delivery) => ({
          ...represent(delivery),
          id: delivery.id,
          sequence: delivery.sequence,
        }));
      };
      const { tokenId, accountId, clientId } = principal;
      return streams.send(request, reply, { poll, tokenId, owner: accountId ?? `client:${clientId}` });
    }
    if (page.after !== null && !/^\d{1,15}$/.test(page.after)) throw page.invalid();
    const before = page.after === null ? null : Number(page.after);
    const { deliveries, more } = await readFromLog(
      listDeliveries(logDb, subscription, filter, page.limit + 1, before),
    );
    const key = ({ sequence }: Delivery) => String(sequence);
    return sendPage(request, reply, page, deliveries, represent, key, more === null ? null : String(more));
  });

  api.get<IdRoute>('/deliveries/:id', async (request) => {
    const owner = ownerOf(await guard(request, 'read:webhooks'), 'read');
    return representDetails(
      await requireDelivery(readFromLog(readDelivery(logDb, owner, request.params.id, headerNames, scopeOf))),
    );
  });

  api.post<IdRoute>('/deliveries/:id/resend', async (request, reply) => {
    const owner = ownerOf(await guard(request, 'write:webhooks'), 'write');
    const { id } = request.params;
    requireEmptyBody(request.body);
    return sendIdempotentForOwner(options, request, reply, owner, async (tx) => {
      switch (await resendDelivery(tx, owner, id)) {
        case 'not-found':
          throw notFound();
        case 'disabled':
          throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
        case 'cancelled':
          throw new Problem(409, 'The delivery was cancelled because its owner lost the right to it.', {
            code: 'delivery-cancelled',
          });
        case 'due': {
          const delivery = await requireDelivery(readDelivery(tx, owner, id, headerNames, scopeOf));
          const headers = { location: `/deliveries/${id}` };
          return { status: 202, headers, body: JSON.stringify(represent(delivery)) };
        }
      }
    });
  });
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

async function requireDelivery(found: Promise<DeliveryDetails | undefined>): Promise<DeliveryDetails> {
  const delivery = await found;
  if (delivery === undefined) throw notFound();
  return delivery;
}

function notFound(): Problem {
  return new Problem(404, 'Delivery not found.');
}

function represent(delivery: Delivery): Record<string, unknown> {
  const self = `/deliveries/${delivery.id}`;
  return {
    id: delivery.id,
    event: delivery.eventId,
    kind: delivery.kind,
    subscription: delivery.subscriptionId,
    sequence: delivery.sequence,
    state: delivery.state,
    attempt_count: delivery.attemptCount,
    last_status: delivery.lastStatus,
    last_error: delivery.lastError,
    created_at: delivery.createdAt.toISOString(),
    next_attempt_at: delivery.nextAttemptAt?.toISOString() ?? null,
    _links: {
      self: { href: self },
      subscription: { href: `/subscriptions/${delivery.subscriptionId}` },
      resend: { href: `${self}/resend`, method: 'POST' },
    },
  };
}

function representDetails(delivery: DeliveryDetails): Record<string, unknown> {
  return {
    ...represent(delivery),
    body: delivery.body === null ? null : (JSON.parse(delivery.body) as unknown),
    attempts: delivery.attempts.map(representAttempt),
  };
}

const triggers = { s: 'schedule', m: 'manual', r: 'recovery' } as const;

function representAttempt(attempt: Attempt): Record<string, unknown> {
  const { connection } = attempt;
  return {
    number: attempt.number,
    trigger: triggers[attempt.trigger],
    at: attempt.startedAt.toISOString(),
    duration_ms: round(attempt.durationMs),
    timings: {
      dns_ms: round(connection?.dnsMs),
      connect_ms: round(connection?.connectMs),
      tls_ms: round(connection?.tlsMs),
      first_byte_ms: round(attempt.firstByteMs),
    },
    connection: describeConnection(connection),
    status: attempt.status,
    error: attempt.error,
    error_detail: attempt.error === null ? null : explain(attempt),
    revision: attempt.revision,
    request: attempt.request,
    response: attempt.responseHeaders === null ? null : representResponse(attempt),
    response_omitted: attempt.isResponseOmitted,
  };
}

/** @returns null if there was no connection */
function describeConnection(connection: Attempt['connection']): string | null {
  if (connection === null) return 'kept';
  if (connection.family === undefined) return null;
  return connection.family === 6 ? 'new, IPv6' : 'new, IPv4';
}

function explain({ error, connection }: Attempt): string {
  const reason = connection?.reason;
  const sentence = describeError(error as string);
  return typeof reason === 'string' ? `${sentence} (${reason})` : sentence;
}

/** Bytes that are not valid UTF-8 are encoded as base64. */
function representResponse({ responseHeaders, responseBody, isTruncated }: Attempt): Record<string, unknown> {
  const body = responseBody ?? Buffer.alloc(0);
  let text: string | undefined;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body);
  } catch {}
  return {
    headers: responseHeaders,
    body: text ?? body.toString('base64'),
    encoding: text === undefined ? 'base64' : 'utf-8',
    truncated: isTruncated,
  };
}

function round(ms: unknown): number | null {
  return typeof ms === 'number' ? Math.round(ms * 10) / 10 : null;
}
