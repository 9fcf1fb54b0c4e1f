/**
 * Rebuilds the request of an attempt for the log. Requests are not stored: they follow from the subscription's
 * revision, the delivery and the attempt. Signatures are left out. Header names, the version and the account's external id
 * are those of now.
 */

import { agentLines, occurrenceId, type WebhookId } from '../sending/agent_message.ts';
import { cloudEventLength, deliveryLines, type EventContent } from '../sending/delivery_request.ts';
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
  /** The id of an agent's subscription, as the agent knows it; null for other subscribers. */
  agentKey: string | null;
}

export interface RecordedRequest {
  method: 'POST';
  url: string;
  headers: Record<string, string>;
}

/** What the operator chose. */
export interface RequestNames {
  headers: HeaderNames;
  webhookId: WebhookId;
}

const hidden = '***';

/** An event of the log. The body is null if it was erased, so that its length is unknown. */
export type RecordedEvent = Omit<EventContent, 'body'> & { body: Buffer | null };

export function recordRequest(
  revision: RevisionFacts,
  delivery: { id: string; sequence: number },
  attempt: { number: number; startedAt: Date },
  event: RecordedEvent,
  names: RequestNames,
): RecordedRequest {
  const { url, signature, format, headerNames, agentKey } = revision;
  const timestamp = Math.floor(attempt.startedAt.getTime() / 1_000);
  const length = sentLength(format, event);
  const signed = { timestamp: `t=${timestamp},v1=`, sha256: 'sha256=', standard: 'v1,', ed25519: 'v1a,' }[
    signature
  ];
  const shown = { timestamp, signed: signed + hidden };
  const { id, sequence } = delivery;
  const lines =
    agentKey === null
      ? deliveryLines(revision, names.headers, event, { id, sequence, number: attempt.number, ...shown })
      : agentLines(agentKey, { id: occurrenceId(names.webhookId, agentKey, event.id), ...shown });
  const headers: Record<string, string> = {
    host: new URL(url).host,
    ...(length === null ? {} : { 'content-length': String(length) }),
    ...Object.fromEntries(lines.split('\r\n').filter(Boolean).map(toHeader)),
    ...Object.fromEntries(headerNames.map((name) => [name, hidden])),
  };
  return { method: 'POST', url, headers };
}

/** Null also for agents: their cursors are not rebuilt, so that the length is unknown. */
function sentLength(format: Format, event: RecordedEvent): number | null {
  const { body } = event;
  if (body === null || format === 'agent') return null;
  // A delivery can have many attempts, so the body is not built.
  return format === 'cloudevents' ? cloudEventLength({ ...event, body }) : body.length;
}

function toHeader(line: string): [name: string, value: string] {
  const end = line.indexOf(': ');
  return [line.slice(0, end), line.slice(end + 2)];
}
