/**
 * Builds the request of one attempt: header lines and body bytes. Parts that depend only on the subscription are
 * built once per subscription.
 */

import type { KeyObject } from 'node:crypto';
import { version } from '../../version.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import { DeliveryIds, type LaneEpoch } from '../subscriptions/delivery_id.ts';
import {
  type SignatureShape,
  signEd25519,
  signSha256,
  signStandard,
  signTimestamp,
} from '../subscriptions/signature.ts';
import type { SubscriberAuth } from '../subscriptions/subscriber_auth.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import { type AgentTerms, buildOccurrence } from './agent_message.ts';
import type { Authorization } from './authorization.ts';
import type { OutgoingRequest } from './exchange.ts';
import { createSigningKeys, type SigningKeys } from './secret_keys.ts';

/** The parts of an event that an attempt needs. */
export interface EventContent {
  id: string;
  kind: string;
  /** The version of the body; null if the kind had none when it was published. */
  version: string | null;
  accountId: string | null;
  /** The application's own id of the account. */
  accountExternalId: string | null;
  body: Buffer;
  /** Milliseconds since 1970. */
  createdAt: number;
  /** The span in which the event was written; null if it was not recorded. Never sent to subscribers. */
  traceparent: string | null;
  /** Facts about the version of the body, set by the presenter where the kind has versions. */
  shown?: { schema: string; notices: string };
}

/** The parts that all requests of a subscription share. */
export interface RequestTemplate {
  origin: string;
  path: string;
  ids: DeliveryIds;
  /** Lines of its static headers, each with its CRLF. */
  headerLines: string;
  /** How they authenticate. */
  auth: SubscriberAuth | null;
  /** Null if the subscriber is not an agent. */
  agent: AgentTerms | null;
}

/** @throws Error if the URL is none */
export function createTemplate(
  subscription: Pick<Subscription, 'id' | 'lane' | 'url'>,
  {
    headerLines = '',
    auth = null,
    epochs = [],
    agent = null,
  }: {
    headerLines?: string;
    auth?: SubscriberAuth | null;
    epochs?: readonly LaneEpoch[];
    agent?: AgentTerms | null;
  } = {},
): RequestTemplate {
  if (subscription.url === null) throw new Error('nothing is sent to a subscription without a URL');
  const url = new URL(subscription.url);
  return {
    origin: url.origin,
    path: url.pathname + url.search,
    ids: new DeliveryIds(subscription.lane, subscription.id, epochs),
    headerLines,
    auth,
    agent,
  };
}

/** Of a subscription to which nothing is sent. */
export function closedTemplate({ id, lane }: Pick<Subscription, 'id' | 'lane'>): RequestTemplate {
  const ids = new DeliveryIds(lane, id, []);
  return { origin: '', path: '', ids, headerLines: '', auth: null, agent: null };
}

export interface AttemptFacts {
  sequence: number;
  /** The attempt number, starting at 1. */
  number: number;
  /** Time of the attempt in milliseconds since 1970. */
  now: number;
}

interface SignedFacts {
  /** The delivery's id. */
  id: string;
  /** Time of the attempt in seconds since 1970. */
  timestamp: number;
  /** Value of the signature. */
  signed: string;
}

/** The deployment's private keys that sign at a time, newest first. @param now milliseconds since 1970 */
export type DeploymentSigners = (now: number) => readonly KeyObject[];

/** Lines that are the same for all requests of a format. */
const constantLines = {
  json: linesOf('application/json'),
  thin: linesOf('application/json'),
  cloudevents: linesOf('application/cloudevents+json'),
  agent: linesOf('application/json'),
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
  authorization: Authorization | undefined,
  tenant: string,
): OutgoingRequest {
  const { id, lines, body } =
    template.agent === null
      ? buildMessage(subscription, template.ids, keys, names, event, facts, signers)
      : buildOccurrence(template.agent, keys, event, facts);
  const headers = lines + template.headerLines + (authorization?.lines ?? '');
  const traced =
    event.traceparent === null ? null : { parent: event.traceparent, deliveryId: id, kind: event.kind };
  const isMutual = authorization?.isMutual ?? false;
  return { origin: template.origin, path: template.path, headers, body, traced, isMutual, tenant };
}

/** What a subscriber gets, however it gets it: the delivery's id, the header lines without the static headers, and the body. */
export function buildMessage(
  subscription: Pick<Subscription, 'format' | 'signature'>,
  ids: DeliveryIds,
  keys: SigningKeys,
  names: HeaderNames,
  event: EventContent,
  facts: AttemptFacts,
  signers: DeploymentSigners,
): { id: string; lines: string; body: Buffer } {
  const id = ids.of(facts.sequence);
  const timestamp = Math.floor(facts.now / 1_000);
  const body = subscription.format === 'cloudevents' ? cloudEventBody(event) : event.body;
  const signed = sign(subscription.signature, id, timestamp, keys, body, facts.now, signers);
  return { id, lines: deliveryLines(subscription, names, event, { ...facts, id, timestamp, signed }), body };
}

/** The header lines of a challenge (handshake.ts): like those of a delivery with the sequence 0, which no delivery has. */
export function buildChallenge(
  { signature, secret }: { signature: SignatureShape; secret: string },
  names: HeaderNames,
  { id, kind, body, now }: { id: string; kind: string; body: Buffer; now: number },
  signers: DeploymentSigners,
): string {
  const keys = createSigningKeys({ secret, previous: null }, signature);
  const timestamp = Math.floor(now / 1_000);
  const signed = sign(signature, id, timestamp, keys, body, now, signers);
  const event = { kind, accountId: null, accountExternalId: null };
  const facts = { id, sequence: 0, number: 1, timestamp, signed };
  return deliveryLines({ format: 'json', signature }, names, event, facts);
}

/** The header lines of an attempt, without the static headers. */
export function deliveryLines(
  { format, signature }: Pick<Subscription, 'format' | 'signature'>,
  names: HeaderNames,
  event: Pick<EventContent, 'kind' | 'accountId' | 'accountExternalId' | 'shown'>,
  { id, sequence, number, timestamp, signed }: Omit<AttemptFacts, 'now'> & SignedFacts,
): string {
  const identified =
    signature === 'standard' || signature === 'ed25519'
      ? `webhook-id: ${id}\r\nwebhook-timestamp: ${timestamp}\r\nwebhook-signature: ${signed}\r\n`
      : `${names.delivery}: ${id}\r\n${names.signature}: ${signed}\r\n`;
  return (
    `${constantLines[format]}${names.event}: ${event.kind}\r\n${names.sequence}: ${sequence}\r\n` +
    `${identified}${names.attempt}: ${number}\r\n${accountLines(event, names)}${event.shown?.notices ?? ''}`
  );
}

/** The lines that say whose event it is; none if the event belongs to no account. */
function accountLines(
  { accountId, accountExternalId }: Pick<EventContent, 'accountId' | 'accountExternalId'>,
  names: HeaderNames,
): string {
  if (accountId === null) return '';
  const line = `${names.account}: ${accountId}\r\n`;
  if (accountExternalId === null) return line;
  return `${line}${names.accountExternalId}: ${encodeExternalId(accountExternalId)}\r\n`;
}

const plainId = /^[\x21-\x24\x26-\x7e]*$/;

/**
 * An external id as a header value: visible ASCII as it is, everything else and `%` percent-encoded as UTF-8. So no id adds
 * a line, loses a space, or reads like another one, and `decodeURIComponent` restores it.
 */
function encodeExternalId(externalId: string): string {
  if (plainId.test(externalId)) return externalId;
  return externalId.replace(/[^\x21-\x24\x26-\x7e]+/g, encodeURIComponent);
}

function sign(
  signature: SignatureShape,
  id: string,
  timestamp: number,
  { both, newest, bothUntil }: SigningKeys,
  body: Buffer,
  now: number,
  signers: DeploymentSigners,
): string {
  const keys = bothUntil > now ? both : newest;
  switch (signature) {
    case 'timestamp':
      return signTimestamp(keys, timestamp, body);
    case 'sha256':
      return signSha256(keys, body);
    case 'standard':
      return signStandard(keys, id, timestamp, body);
    case 'ed25519':
      return signEd25519(signers(now), id, timestamp, body);
  }
}

/** Wraps an event in a CloudEvents 1.0 envelope (JSON format, structured mode). */
function cloudEventBody(event: EventContent): Buffer {
  // The body is JSON already, so its bytes are copied unchanged.
  return Buffer.concat([cloudEventStart(event), event.body, cloudEventEnd]);
}

/** The bytes of `cloudEventBody`. */
export function cloudEventLength(event: EventContent): number {
  return cloudEventStart(event).length + event.body.length + cloudEventEnd.length;
}

const cloudEventEnd = Buffer.from('}');

function cloudEventStart(event: EventContent): Buffer {
  const attributes = {
    specversion: '1.0',
    id: event.id,
    source: event.accountId === null ? '/' : `/accounts/${event.accountId}`,
    ...(event.accountExternalId === null ? {} : { accountexternalid: event.accountExternalId }),
    type: event.kind,
    time: new Date(event.createdAt).toISOString(),
    datacontenttype: 'application/json',
    ...(event.shown === undefined ? {} : { dataschema: event.shown.schema }),
  };
  return Buffer.from(`${JSON.stringify(attributes).slice(0, -1)},"data":`);
}
