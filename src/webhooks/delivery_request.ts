/**
 * The request of one attempt: headers (decisions of the deployment: their names) and the body's bytes. What depends
 * on the subscription alone is made once for it.
 */

import type { KeyObject } from 'node:crypto';
import { version } from '../version.ts';
import { deliveryId, deliveryIdPrefix } from './delivery_id.ts';
import type { OutgoingRequest } from './sender.ts';
import { signEd25519, signSha256, signStandard, signTimestamp, standardKey } from './signature.ts';
import type { Secrets, Subscription } from './subscription.ts';

/** Names of the headers, the operator's to set. */
export interface HeaderNames {
  event: string;
  delivery: string;
  signature: string;
  sequence: string;
  attempt: string;
}

export const defaultHeaderNames: HeaderNames = {
  event: 'Nuncio-Event',
  delivery: 'Nuncio-Delivery',
  signature: 'Nuncio-Signature',
  sequence: 'Nuncio-Sequence',
  attempt: 'Nuncio-Attempt',
};

/** What an attempt needs of an event. */
export interface EventContent {
  id: string;
  kind: string;
  accountId: string | null;
  body: Buffer;
  /** Milliseconds since 1970. */
  createdAt: number;
  /** Of the span in which it was written; null where that was not recorded. Never sent. */
  traceparent: string | null;
}

/** What a subscription's requests have in common. */
export interface RequestTemplate {
  origin: string;
  path: string;
  idPrefix: string;
}

export function createTemplate(subscription: Pick<Subscription, 'id' | 'lane' | 'url'>): RequestTemplate {
  const url = new URL(subscription.url);
  return {
    origin: url.origin,
    path: url.pathname + url.search,
    idPrefix: deliveryIdPrefix(subscription.lane, subscription.id),
  };
}

export interface AttemptFacts {
  sequence: number;
  /** 1, 2, 3 … */
  number: number;
  /** Milliseconds since 1970, of the attempt. */
  now: number;
}

/** The deployment's own private keys that sign at a moment, newest first. @param now milliseconds since 1970 */
export type DeploymentSigners = (now: number) => readonly KeyObject[];

/** Those that sign at a moment, newest first. */
export function liveSecrets(secrets: Secrets, now: number): string[] {
  const { secret, previous } = secrets;
  return previous !== null && previous.until.getTime() > now ? [secret, previous.secret] : [secret];
}

export function buildRequest(
  subscription: Subscription,
  template: RequestTemplate,
  secrets: Secrets,
  names: HeaderNames,
  event: EventContent,
  facts: AttemptFacts,
  signers: DeploymentSigners,
): OutgoingRequest {
  const id = deliveryId(template.idPrefix, facts.sequence);
  const timestamp = Math.floor(facts.now / 1_000);
  const live = liveSecrets(secrets, facts.now);
  const isCloudEvent = subscription.format === 'cloudevents';
  const body = isCloudEvent ? cloudEventBody(event) : event.body;
  const headers = [
    'content-type',
    isCloudEvent ? 'application/cloudevents+json' : 'application/json',
    'user-agent',
    `Nuncio/${version}`,
    'accept-encoding',
    'identity',
    names.event,
    event.kind,
    names.sequence,
    String(facts.sequence),
  ];
  switch (subscription.signature) {
    case 'standard':
      headers.push('webhook-id', id, 'webhook-timestamp', String(timestamp));
      headers.push('webhook-signature', signStandard(live.map(standardKey), id, timestamp, body));
      break;
    case 'ed25519':
      headers.push('webhook-id', id, 'webhook-timestamp', String(timestamp));
      headers.push('webhook-signature', signEd25519(signers(facts.now), id, timestamp, body));
      break;
    case 'timestamp':
      headers.push(names.delivery, id, names.signature, signTimestamp(live, timestamp, body));
      break;
    case 'sha256':
      headers.push(names.delivery, id, names.signature, signSha256(live, body));
      break;
  }
  headers.push(names.attempt, String(facts.number));
  const traced =
    event.traceparent === null ? null : { parent: event.traceparent, deliveryId: id, kind: event.kind };
  return { origin: template.origin, path: template.path, headers, body, traced };
}

/** CloudEvents 1.0, JSON format, structured mode. */
export function cloudEventBody(event: EventContent): Buffer {
  const attributes = {
    specversion: '1.0',
    id: event.id,
    source: event.accountId === null ? '/' : `/accounts/${event.accountId}`,
    type: event.kind,
    time: new Date(event.createdAt).toISOString(),
    datacontenttype: 'application/json',
  };
  // The body's bytes are kept as they are: they are JSON already.
  return Buffer.concat([
    Buffer.from(`${JSON.stringify(attributes).slice(0, -1)},"data":`),
    event.body,
    Buffer.from('}'),
  ]);
}
