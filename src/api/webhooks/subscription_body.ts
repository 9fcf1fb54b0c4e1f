/** Reads the bodies that create or change a subscription, and checks what their schemas cannot say. */

import type { Static } from 'typebox';
import type { Config } from '../../config/config.ts';
import type { ErrorList } from '../../http/problem.ts';
import type { HeaderNames } from '../../webhooks/subscriptions/delivery_headers.ts';
import { isSecret } from '../../webhooks/subscriptions/signature.ts';
import { checkStaticHeaders, type HeaderPatch } from '../../webhooks/subscriptions/static_headers.ts';
import { checkSubscriberUrl } from '../../webhooks/subscriptions/subscriber_url.ts';
import type {
  Subscription,
  SubscriptionFields,
  SubscriptionState,
} from '../../webhooks/subscriptions/subscription.ts';
import type { SubscriptionBodies } from './schemas.ts';

export type NewSubscription = Static<SubscriptionBodies['create']>;
type Patch = Static<SubscriptionBodies['patch']>;

export interface BodyRules {
  config: Pick<Config, 'insecureSubscribers'>;
  /** The deployment's own header names, which static headers may not use. */
  headerNames: HeaderNames;
}

interface Checked {
  url?: string;
  headers?: HeaderPatch;
  secret?: string;
}

/** Adds an error for a refused URL, header or secret. @param isPatch whether values may be null or masked */
export function checkSubscription(
  { url, headers, secret }: Checked,
  errors: ErrorList,
  { config, headerNames }: BodyRules,
  isPatch: boolean,
): void {
  const { error } = url === undefined ? {} : checkSubscriberUrl(url, config.insecureSubscribers);
  if (error !== undefined) errors.add(['url'], error.message, error.code);
  checkStaticHeaders(headers ?? {}, Object.values(headerNames), isPatch, errors);
  checkSecret(secret, errors);
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
    ordered: body.ordered ?? false,
    rateLimit: body.rate_limit ?? null,
    retrySchedule: body.retry_schedule ?? null,
    description: body.description ?? '',
  };
}

export interface PatchedSubscription extends SubscriptionFields {
  state: SubscriptionState;
  headers: HeaderPatch | undefined;
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
    ordered: choose(patch.ordered, current.ordered, false),
    rateLimit: choose(patch.rate_limit, current.rateLimit, null),
    retrySchedule: choose(patch.retry_schedule, current.retrySchedule, null),
    description: choose(patch.description, current.description, ''),
    state: patch.state ?? current.state,
    headers: patch.headers,
  };
}

function normalized(url: string, { config }: BodyRules): string {
  return checkSubscriberUrl(url, config.insecureSubscribers).url as string;
}
