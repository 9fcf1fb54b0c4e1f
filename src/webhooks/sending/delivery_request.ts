/**
 * The request of one attempt: headers (decisions of the deployment: their names) and the body's bytes. What depends
 * on the subscription alone is made once for it.
 */

import type { KeyObject } from 'node:crypto';
import { version } from '../../version.ts';
import { DeliveryIds, type LaneEpoch } from '../subscriptions/delivery_id.ts';
import type { HmacKey } from '../subscriptions/hmac.ts';
import {
  type SignatureShape,
  signEd25519,
  signSha256,
  signStandard,
  signTimestamp,
  standardKey,
  textKey,
} from '../subscriptions/signature.ts';
import type { Secrets, Subscription } from '../subscriptions/subscription.ts';
import type { OutgoingRequest } from './connection.ts';

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
  ids: DeliveryIds;
  /** Of its static headers, each with its end. */
  headerLines: string;
}

export function createTemplate(
  subscription: Pick<Subscription, 'id' | 'lane' | 'url'>,
  headerLines = '',
  epochs: readonly LaneEpoch[] = [],
): RequestTemplate {
  const url = new URL(subscription.url);
  return {
    origin: url.origin,
    path: url.pathname + url.search,
    ids: new DeliveryIds(subscription.lane, subscription.id, epochs),
    headerLines,
  };
}

/** The keys of a subscription's secrets in the form that its signature takes, newest first. */
export interface SigningKeys {
  both: readonly HmacKey[];
  newest: readonly HmacKey[];
  /** Milliseconds since 1970: until then both sign. */
  bothUntil: number;
}

export function createSigningKeys({ secret, previous }: Secrets, signature: SignatureShape): SigningKeys {
  // Signed with the deployment's own.
  if (signature === 'ed25519') return { both: [], newest: [], bothUntil: 0 };
  const keyOf = signature === 'standard' ? standardKey : textKey;
  const newest = [keyOf(secret)];
  if (previous === null) return { both: newest, newest, bothUntil: 0 };
  return { both: [...newest, keyOf(previous.secret)], newest, bothUntil: previous.until.getTime() };
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

/** What does not depend on anything, by formats. */
const constantLines = {
  json: linesOf('application/json'),
  cloudevents: linesOf('application/cloudevents+json'),
};

function linesOf(contentType: string): string {
  return `content-type: ${contentType}\r\nuser-agent: Nuncio/${version}\r\naccept-encoding: identity\r\n`;
}

export function buildRequest(
  subscription: Subscription,
  template: RequestTemplate,
  keys: SigningKeys,
  names: HeaderNames,
  event: EventContent,
  facts: AttemptFacts,
  signers: DeploymentSigners,
): OutgoingRequest {
  const { format, signature } = subscription;
  const id = template.ids.of(facts.sequence);
  const body = format === 'cloudevents' ? cloudEventBody(event) : event.body;
  const headers =
    `${constantLines[format]}${names.event}: ${event.kind}\r\n${names.sequence}: ${facts.sequence}\r\n` +
    `${signedLines(signature, id, keys, names, body, facts.now, signers)}${names.attempt}: ${facts.number}\r\n${template.headerLines}`;
  const traced =
    event.traceparent === null ? null : { parent: event.traceparent, deliveryId: id, kind: event.kind };
  return { origin: template.origin, path: template.path, headers, body, traced };
}

/** The lines that say which delivery it is, and sign it. */
function signedLines(
  signature: SignatureShape,
  id: string,
  { both, newest, bothUntil }: SigningKeys,
  names: HeaderNames,
  body: Buffer,
  now: number,
  signers: DeploymentSigners,
): string {
  const timestamp = Math.floor(now / 1_000);
  const keys = bothUntil > now ? both : newest;
  if (signature === 'timestamp' || signature === 'sha256') {
    const value = signature === 'sha256' ? signSha256(keys, body) : signTimestamp(keys, timestamp, body);
    return `${names.delivery}: ${id}\r\n${names.signature}: ${value}\r\n`;
  }
  const value =
    signature === 'standard'
      ? signStandard(keys, id, timestamp, body)
      : signEd25519(signers(now), id, timestamp, body);
  return `webhook-id: ${id}\r\nwebhook-timestamp: ${timestamp}\r\nwebhook-signature: ${value}\r\n`;
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
