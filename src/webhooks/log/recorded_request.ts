/**
 * Rebuilds the request of an attempt for the log. Requests are not stored: they follow from the subscription's
 * revision, the delivery and the attempt. Signatures are left out. Header names, the version and the account's external id
 * are those of now.
 */

import { cloudEventBody, deliveryLines, type EventContent } from '../sending/delivery_request.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import type { SignatureShape } from '../subscriptions/signature.ts';
import type { Format } from '../subscriptions/subscription.ts';

/** The subscription at the time of the attempt. */
export interface RevisionFacts {
  url: string;
  signature: SignatureShape;
  format: Format;
  /** Names of its static headers. */
  headerNames: readonly string[];
}

export interface RecordedRequest {
  method: 'POST';
  url: string;
  headers: Record<string, string>;
}

const hidden = '***';

/** An event of the log. The body is null if it was erased, so that its length is unknown. */
export type RecordedEvent = Omit<EventContent, 'body'> & { body: Buffer | null };

export function recordRequest(
  revision: RevisionFacts,
  delivery: { id: string; sequence: number },
  attempt: { number: number; startedAt: Date },
  event: RecordedEvent,
  names: HeaderNames,
): RecordedRequest {
  const { url, signature, format, headerNames } = revision;
  const timestamp = Math.floor(attempt.startedAt.getTime() / 1_000);
  const body =
    format === 'cloudevents' && event.body !== null
      ? cloudEventBody({ ...event, body: event.body })
      : event.body;
  const signed = { timestamp: `t=${timestamp},v1=`, sha256: 'sha256=', standard: 'v1,', ed25519: 'v1a,' }[
    signature
  ];
  const lines = deliveryLines(revision, names, event, {
    id: delivery.id,
    sequence: delivery.sequence,
    number: attempt.number,
    timestamp,
    signed: signed + hidden,
  });
  const headers: Record<string, string> = {
    host: new URL(url).host,
    ...(body === null ? {} : { 'content-length': String(body.length) }),
    ...Object.fromEntries(lines.split('\r\n').filter(Boolean).map(toHeader)),
    ...Object.fromEntries(headerNames.map((name) => [name, hidden])),
  };
  return { method: 'POST', url, headers };
}

function toHeader(line: string): [name: string, value: string] {
  const end = line.indexOf(': ');
  return [line.slice(0, end), line.slice(end + 2)];
}
