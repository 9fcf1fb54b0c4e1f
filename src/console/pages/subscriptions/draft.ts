/** A subscription as a form draft and as a request body. */

import type {
  SubscriberAuth,
  Subscription,
  SubscriptionCreate,
  SubscriptionMergePatch,
} from '../../api/generated.ts';
import { type AuthDraft, authDraftOf, authMember, noAuth } from './auth_draft.ts';
import { type FilterDraft, filterDraftOf, noFilter, toFilter } from './filter/draft.ts';
import { newest, oldest } from './version_field.tsx';

export interface SubscriptionDraft {
  /** The app reads the events: nothing is sent, and there is no URL. */
  isPulled: boolean;
  url: string;
  description: string;
  kinds: readonly string[];
  signature: string;
  format: string;
  /** A date, `newest` or `oldest` (version_field.tsx). */
  version: string;
  ordered: boolean;
  /** Deliveries a second; empty for no limit. */
  rateLimit: string;
  /** Such as `5s, 30s, 2min`; empty for the server's schedule. */
  retrySchedule: string;
  headers: readonly StaticHeader[];
  filter: FilterDraft;
  auth: AuthDraft;
  /** What the subscription has now; null for a new one. */
  storedAuth: SubscriberAuth | null;
  /** Whether each new URL must echo a challenge. */
  handshake: boolean;
}

export interface StaticHeader {
  name: string;
  /** `***` for an unchanged value: the server never shows values. */
  value: string;
}

export const emptyDraft: SubscriptionDraft = {
  isPulled: false,
  url: '',
  description: '',
  kinds: [],
  signature: 'timestamp',
  format: 'json',
  version: newest,
  ordered: false,
  rateLimit: '',
  retrySchedule: '',
  headers: [],
  filter: noFilter,
  auth: noAuth,
  storedAuth: null,
  handshake: false,
};

export function draftOf(subscription: Subscription): SubscriptionDraft {
  return {
    isPulled: subscription.url === null,
    url: subscription.url ?? '',
    description: subscription.description,
    kinds: subscription.kinds,
    signature: subscription.signature,
    format: subscription.format,
    version: subscription.version ?? oldest,
    ordered: subscription.ordered,
    rateLimit: subscription.rate_limit === null ? '' : String(subscription.rate_limit),
    retrySchedule: writeSchedule(subscription.retry_schedule),
    headers: Object.entries(subscription.headers).map(([name, value]) => ({ name, value: value ?? '' })),
    filter: filterDraftOf(subscription.filter),
    auth: authDraftOf(subscription.auth),
    storedAuth: subscription.auth,
    handshake: subscription.handshake,
  };
}

/** The members of a request that creates or changes a subscription. */
export function toBody(draft: SubscriptionDraft): SubscriptionCreate {
  return {
    url: draft.isPulled ? null : draft.url.trim(),
    description: draft.description.trim(),
    kinds: [...draft.kinds],
    signature: draft.signature as SubscriptionCreate['signature'],
    format: draft.format as SubscriptionCreate['format'],
    ordered: draft.ordered,
    rate_limit: draft.rateLimit.trim() === '' ? null : Number(draft.rateLimit),
    retry_schedule: readSchedule(draft.retrySchedule) ?? null,
    filter: toFilter(draft.filter),
    ...versionOf(draft.version),
    ...headersOf(draft.headers),
    ...(draft.isPulled ? {} : { ...authMember(draft.auth), handshake: draft.handshake }),
  };
}

/** Left out where the server chooses. */
function versionOf(version: string): { version?: string } {
  return version === newest || version === oldest ? {} : { version };
}

/** Undefined if there are none, so that the member is omitted. */
function headersOf(headers: readonly StaticHeader[]): Pick<SubscriptionCreate, 'headers'> {
  const named = headers.filter(({ name }) => name.trim() !== '');
  if (named.length === 0) return {};
  return { headers: Object.fromEntries(named.map(({ name, value }) => [name.trim(), value])) };
}

/** The members of a change. Removed headers become null (RFC 7396). */
export function toPatch(draft: SubscriptionDraft, before: Subscription): SubscriptionMergePatch {
  const isMoved = draft.version !== (before.version ?? oldest);
  // A version that the operator has removed is kept, but cannot be sent.
  const { headers = {}, url, ...body } = toBody(isMoved ? draft : { ...draft, version: newest });
  const gone = Object.keys(before.headers).filter((name) => !(name in (headers ?? {})));
  const removed = Object.fromEntries(gone.map((name) => [name, null]));
  const changed = { ...headers, ...removed };
  // A change of headers waits for attempts in flight, also one that changes nothing.
  const hasHeaders = Object.keys(changed).length > 0;
  return { ...body, ...(url === null ? {} : { url }), ...(hasHeaders ? { headers: changed } : {}) };
}

const unitSeconds: Readonly<Record<string, number>> = { s: 1, min: 60, m: 60, h: 3_600, d: 86_400 };

/** @returns pauses in seconds; null for empty text; undefined for invalid text */
export function readSchedule(text: string): number[] | null | undefined {
  if (text.trim() === '') return null;
  const steps = text.split(',').map((step) => {
    const [, amount, unit] = /^\s*(\d{1,6})\s*(s|min|m|h|d)\s*$/.exec(step) ?? [];
    return amount === undefined ? Number.NaN : Number(amount) * (unitSeconds[unit as string] as number);
  });
  return steps.every((step) => step >= 1) ? steps : undefined;
}

export function writeSchedule(steps: readonly number[] | null): string {
  const units = [
    ['d', 86_400],
    ['h', 3_600],
    ['min', 60],
    ['s', 1],
  ] as const;
  return (steps ?? [])
    .map((step) => {
      const [unit, seconds] = units.find(([, size]) => step % size === 0) ?? ['s', 1];
      return `${step / seconds}${unit}`;
    })
    .join(', ');
}
