/**
 * Rebuilds the request of an attempt for the log. Requests are not stored: they follow from the subscription's
 * revision, the delivery and the attempt. Signatures are left out. Header names, the version and the account's external id
 * are those of now.
 */

import { version } from '../../version.ts';
import { cloudEventBody, type EventContent, encodeExternalId } from '../sending/delivery_request.ts';
import type { HeaderNames } from '../sending/header_names.ts';
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
  delivery: { id: string; kind: string; sequence: number },
  attempt: { number: number; startedAt: Date },
  event: RecordedEvent,
  names: HeaderNames,
): RecordedRequest {
  const { url, signature, format, headerNames } = revision;
  const isCloudEvent = format === 'cloudevents';
  const timestamp = String(Math.floor(attempt.startedAt.getTime() / 1_000));
  const { accountId, accountExternalId } = event;
  const body =
    isCloudEvent && event.body !== null ? cloudEventBody({ ...event, body: event.body }) : event.body;
  const headers: Record<string, string> = {
    host: new URL(url).host,
    'content-type': isCloudEvent ? 'application/cloudevents+json' : 'application/json',
    ...(body === null ? {} : { 'content-length': String(body.length) }),
    'user-agent': `Nuncio/${version}`,
    'accept-encoding': 'identity',
    [names.event]: delivery.kind,
    [names.sequence]: String(delivery.sequence),
    ...signed(signature, delivery.id, timestamp, names),
    [names.attempt]: String(attempt.number),
    ...(accountId === null ? {} : { [names.account]: accountId }),
    ...(accountExternalId === null ? {} : { [names.accountExternalId]: encodeExternalId(accountExternalId) }),
    ...Object.fromEntries(headerNames.map((name) => [name, hidden])),
  };
  return { method: 'POST', url, headers };
}

function signed(
  signature: SignatureShape,
  id: string,
  timestamp: string,
  names: HeaderNames,
): Record<string, string> {
  switch (signature) {
    case 'standard':
    case 'ed25519': {
      const value = `${signature === 'standard' ? 'v1' : 'v1a'},${hidden}`;
      return { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': value };
    }
    case 'timestamp':
      return { [names.delivery]: id, [names.signature]: `t=${timestamp},v1=${hidden}` };
    case 'sha256':
      return { [names.delivery]: id, [names.signature]: `sha256=${hidden}` };
  }
}
