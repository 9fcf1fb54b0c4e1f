/** JSON representations of deliveries and their attempts. */

import { describeError } from '../../webhooks/lanes/outcome_policy.ts';
import type { Delivery } from '../../webhooks/log/delivery.ts';
import { type Attempt, type DeliveryDetails, responseBytesMax } from '../../webhooks/log/delivery_details.ts';

export function representDelivery(delivery: Delivery): Record<string, unknown> {
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

/** A delivery with its body and attempts, as JSON. The body is the text that was published: parsing one of many names takes long. */
export function detailsText(delivery: DeliveryDetails): string {
  const attempts: string[] = [];
  let left = responseBytesMax;
  for (const attempt of delivery.attempts.toReversed()) {
    // JSON makes up to six bytes of one. Older responses are omitted without being written first.
    const response =
      left <= 0 || attempt.responseHeaders === null ? null : JSON.stringify(representResponse(attempt));
    left -= Buffer.byteLength(response ?? '');
    const isShown = response !== null && left >= 0;
    const isOmitted = attempt.isResponseOmitted || (attempt.responseHeaders !== null && !isShown);
    const members = JSON.stringify(representAttempt(attempt)).slice(0, -1);
    attempts.unshift(`${members},"response":${isShown ? response : 'null'},"response_omitted":${isOmitted}}`);
  }
  const members = JSON.stringify(representDelivery(delivery)).slice(0, -1);
  return `${members},"body":${delivery.body ?? 'null'},"attempts":[${attempts.join(',')}]}`;
}

const triggers = { s: 'schedule', m: 'manual', r: 'recovery' } as const;

/** All but the response. */
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
