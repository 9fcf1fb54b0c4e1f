/** A subscription as it stands in a form, and as the API takes it. */

import type { Subscription, SubscriptionCreate } from '../../api/generated.ts';

export interface SubscriptionDraft {
  url: string;
  description: string;
  kinds: readonly string[];
  signature: string;
  format: string;
  ordered: boolean;
  /** Deliveries a second; empty: as many as there are. */
  rateLimit: string;
  /** Like `5s, 30s, 2min`; empty: the deployment's own. */
  retrySchedule: string;
}

export const emptyDraft: SubscriptionDraft = {
  url: '',
  description: '',
  kinds: [],
  signature: 'timestamp',
  format: 'json',
  ordered: false,
  rateLimit: '',
  retrySchedule: '',
};

export function draftOf(subscription: Subscription): SubscriptionDraft {
  return {
    url: subscription.url,
    description: subscription.description,
    kinds: subscription.kinds,
    signature: subscription.signature,
    format: subscription.format,
    ordered: subscription.ordered,
    rateLimit: subscription.rate_limit === null ? '' : String(subscription.rate_limit),
    retrySchedule: writeSchedule(subscription.retry_schedule),
  };
}

/** The members of the body; the same for a new one and for a change. */
export function toBody(draft: SubscriptionDraft): SubscriptionCreate {
  return {
    url: draft.url.trim(),
    description: draft.description.trim(),
    kinds: [...draft.kinds],
    signature: draft.signature as SubscriptionCreate['signature'],
    format: draft.format as SubscriptionCreate['format'],
    ordered: draft.ordered,
    rate_limit: draft.rateLimit.trim() === '' ? null : Number(draft.rateLimit),
    retry_schedule: readSchedule(draft.retrySchedule) ?? null,
  };
}

const unitSeconds: Readonly<Record<string, number>> = { s: 1, min: 60, m: 60, h: 3_600, d: 86_400 };

/** @returns pauses in seconds; null for an empty text; undefined for one that cannot be read */
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
