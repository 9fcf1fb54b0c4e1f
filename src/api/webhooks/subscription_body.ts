/** Reads the bodies that create or change a subscription, and checks what their schemas cannot say. */

import type { Static } from 'typebox';
import type { Config } from '../../config/config.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import type { Filter } from '../../events/filter.ts';
import type { ErrorList } from '../../http/problem.ts';
import type { HeaderNames } from '../../webhooks/subscriptions/delivery_headers.ts';
import { isSecret } from '../../webhooks/subscriptions/signature.ts';
import { checkStaticHeaders, type HeaderPatch } from '../../webhooks/subscriptions/static_headers.ts';
import {
  checkAuth,
  checkHeaderIsFree,
  type GivenAuth,
} from '../../webhooks/subscriptions/subscriber_auth.ts';
import { checkSubscriberUrl } from '../../webhooks/subscriptions/subscriber_url.ts';
import type {
  Subscription,
  SubscriptionFields,
  SubscriptionState,
} from '../../webhooks/subscriptions/subscription.ts';
import { checkFilter } from './filter_body.ts';
import type { SubscriptionBodies } from './schemas.ts';

export type NewSubscription = Static<SubscriptionBodies['create']>;
type Patch = Static<SubscriptionBodies['patch']>;

export interface BodyRules {
  config: Pick<Config, 'insecureSubscribers'>;
  /** Private receivers that the operator listed. */
  allow: readonly string[];
  /** The deployment's own header names, which static headers may not use. */
  headerNames: HeaderNames;
  /** Whether the deployment has a client certificate. */
  hasCertificate: boolean;
  catalogue: Pick<Catalogue, 'newestVersion' | 'kinds'>;
}

interface Checked {
  url?: string | null;
  headers?: HeaderPatch;
  auth?: GivenAuth | null;
  handshake?: boolean | null;
  secret?: string;
  filter?: Filter | null;
  kinds?: readonly string[];
}

/** Adds an error for a refused URL, header, authentication, secret or, of a new subscription, filter. @param isPatch whether values may be null or masked */
export function checkSubscription(
  { url, headers, auth, handshake, secret, filter, kinds = [] }: Checked,
  errors: ErrorList,
  { config, allow, headerNames, hasCertificate, catalogue }: BodyRules,
  isPatch: boolean,
): void {
  const { error } = url == null ? {} : checkSubscriberUrl(url, config.insecureSubscribers, allow);
  if (error !== undefined) errors.add(['url'], error.message, error.code);
  checkStaticHeaders(headers ?? {}, Object.values(headerNames), isPatch, errors);
  if (auth != null) {
    const taken = Object.values(headerNames);
    checkAuth(auth, { allowInsecure: config.insecureSubscribers, allow, taken, hasCertificate }, errors);
  }
  if (!isPatch) checkHeaderIsFree(auth, Object.keys(headers ?? {}), errors);
  if (!isPatch && url === null && handshake === true) errors.add(['handshake'], 'needs a URL', 'pull-only');
  checkSecret(secret, errors);
  // A change is checked when the current kinds are known.
  if (!isPatch) checkFilter(filter, kinds, errors, catalogue);
}

/** The pattern of the schema does not count bytes. */
export function checkSecret(secret: string | undefined, errors: ErrorList): void {
  if (secret !== undefined && !isSecret(secret))
    errors.add(['secret'], 'is not the base64 of 24 to 64 bytes');
}

/** @param body has passed the checks */
export function fieldsOf(body: NewSubscription, rules: BodyRules): SubscriptionFields {
  return {
    url: normalized(body.url, rules),
    kinds: [...new Set(body.kinds)],
    signature: body.signature ?? 'timestamp',
    format: body.format ?? 'json',
    version: body.version ?? rules.catalogue.newestVersion,
    ordered: body.ordered ?? false,
    rateLimit: body.rate_limit ?? null,
    retrySchedule: body.retry_schedule ?? null,
    filter: body.filter ?? null,
    handshake: body.handshake ?? false,
    description: body.description ?? '',
  };
}

export interface PatchedSubscription extends SubscriptionFields {
  state: SubscriptionState;
  headers: HeaderPatch | undefined;
  auth: GivenAuth | null | undefined;
}

/** Applies a merge patch (RFC 7396), in which null restores the default. @param patch has passed the checks */
export function applySubscriptionPatch(
  patch: Patch,
  current: Subscription,
  rules: BodyRules,
): PatchedSubscription {
  const choose = <V>(given: V | null | undefined, now: V, fallback: V) =>
    given === undefined ? now : (given ?? fallback);
  return {
    url: patch.url === undefined ? current.url : normalized(patch.url, rules),
    // Kinds that the patch omits are not checked again: the operator may have removed one from the catalogue since.
    kinds: patch.kinds === undefined ? current.kinds : [...new Set(patch.kinds)],
    signature: choose(patch.signature, current.signature, 'timestamp'),
    format: choose(patch.format, current.format, 'json'),
    version: choose(patch.version, current.version, rules.catalogue.newestVersion),
    ordered: choose(patch.ordered, current.ordered, false),
    rateLimit: choose(patch.rate_limit, current.rateLimit, null),
    retrySchedule: choose(patch.retry_schedule, current.retrySchedule, null),
    // Replaced as a whole: merging the members of two filters gives none.
    filter: choose(patch.filter, current.filter, null),
    handshake: choose(patch.handshake, current.handshake, false),
    description: choose(patch.description, current.description, ''),
    state: patch.state ?? current.state,
    headers: patch.headers,
    auth: patch.auth,
  };
}

function normalized(url: string | null, { config, allow }: BodyRules): string | null {
  if (url === null) return null;
  return checkSubscriberUrl(url, config.insecureSubscribers, allow).url as string;
}
