/**
 * What agents get (MCP Events, SEP-3415): occurrences of events, the challenge of a URL, and control messages about a subscription.
 * All are signed as Standard Webhooks and name the subscription in a header.
 *
 *   {"eventId":"…","name":"…","timestamp":"…","data":{…},"cursor":"…"}     webhook-id: the event's id, or msg_…
 *   {"type":"verification","challenge":"…"}                                webhook-id: msg_verification_…
 *   {"type":"terminated","error":{…}}, {"type":"gap","cursor":"…"}         webhook-id: msg_terminated_…, msg_gap_…
 */

import { hash, randomBytes } from 'node:crypto';
import { version } from '../../version.ts';
import { signStandard } from '../subscriptions/signature.ts';
import type { SigningKeys } from './secret_keys.ts';

/** The parts of an event that an occurrence has. */
interface OccurrenceSource {
  id: string;
  body: Buffer;
  /** Milliseconds since 1970. */
  createdAt: number;
}

/** What identifies a delivery: the event, or this event for this subscription. The drafts disagree. */
export type WebhookId = 'event' | 'message';

/** How the operator's platform talks to agents. */
export interface AgentMessageSettings {
  /** The codes of errors. */
  codeOf: Readonly<Record<'Forbidden' | 'NotFound', number>>;
  webhookId: WebhookId;
}

/** What an agent's subscription adds to its requests. */
export interface AgentTerms {
  /** The id of the subscription, as the agent knows it. */
  key: string;
  /** The name of the event kind, as the agent asked for it. */
  name: string;
  webhookId: WebhookId;
  /** The cursor at a delivery. The same delivery always has the same cursor, so each attempt has the same body. */
  cursorAt: (sequence: number, event: Pick<OccurrenceSource, 'createdAt'>) => string;
}

export type ControlType = 'verification' | 'terminated' | 'gap';

/** The id of a message that is not an event. */
export function controlId(type: ControlType): string {
  return `msg_${type}_${randomBytes(12).toString('hex')}`;
}

/** The id of an occurrence. A subscription that gets an event again gets the same id. */
export function occurrenceId(webhookId: WebhookId, key: string, eventId: string): string {
  return webhookId === 'event' ? eventId : `msg_${hash('sha256', `${key} ${eventId}`).slice(0, 24)}`;
}

/** The body of an occurrence. The event's body is JSON already, so its bytes are copied unchanged. */
function occurrenceBody({ id, createdAt, body }: OccurrenceSource, name: string, cursor: string): Buffer {
  const start = JSON.stringify({ eventId: id, name, timestamp: new Date(createdAt).toISOString() });
  return Buffer.concat([
    Buffer.from(`${start.slice(0, -1)},"data":`),
    body,
    Buffer.from(`,"cursor":${JSON.stringify(cursor)}}`),
  ]);
}

/** The header lines of a message. @param timestamp seconds since 1970 */
export function agentLines(
  key: string,
  { id, timestamp, signed }: { id: string; timestamp: number; signed: string },
): string {
  return (
    `content-type: application/json\r\nuser-agent: Nuncio/${version}\r\naccept-encoding: identity\r\n` +
    `webhook-id: ${id}\r\nwebhook-timestamp: ${timestamp}\r\nwebhook-signature: ${signed}\r\n` +
    `x-mcp-subscription-id: ${key}\r\n`
  );
}

/** Signs a message. @param now milliseconds since 1970; both secrets sign during an overlap, the newest first */
export function signedAgentLines(
  key: string,
  { both, newest, bothUntil }: SigningKeys,
  { id, body, now }: { id: string; body: Buffer; now: number },
): string {
  const timestamp = Math.floor(now / 1_000);
  const signed = signStandard(bothUntil > now ? both : newest, id, timestamp, body);
  return agentLines(key, { id, timestamp, signed });
}

/** An occurrence for an agent, like `buildMessage` for other subscribers. */
export function buildOccurrence(
  { key, name, webhookId, cursorAt }: AgentTerms,
  keys: SigningKeys,
  event: OccurrenceSource,
  { sequence, now }: { sequence: number; now: number },
): { id: string; lines: string; body: Buffer } {
  const body = occurrenceBody(event, name, cursorAt(sequence, event));
  const id = occurrenceId(webhookId, key, event.id);
  return { id, lines: signedAgentLines(key, keys, { id, body, now }), body };
}
