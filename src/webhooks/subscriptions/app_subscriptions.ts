/**
 * Decides which apps may have subscriptions of their own (`owner: "client"`): all apps, verified apps, or only
 * clients that the operator marked with `may_subscribe`. Marked clients may always have them. The rule is checked
 * when a subscription is created, during fan-out, and before an attempt.
 */

import { sql } from 'kysely';

export const appSubscriptionModes = ['all', 'verified', 'off'] as const;
export type AppSubscriptions = (typeof appSubscriptionModes)[number];

/** Own subscriptions of one app. Clients that the operator marked use the quota per grant instead. */
export const appSubscriptionsMax = 20;

/** A condition for `where`: whether client `c`, a row of `clients`, may have its own subscriptions. */
export function mayOwnSubscriptions(mode: AppSubscriptions) {
  switch (mode) {
    case 'all':
      return sql`(not c.is_stopped)`;
    case 'verified':
      return sql`(not c.is_stopped and (c.may_subscribe or c.verified_at is not null or c.origin = 'operator'))`;
    case 'off':
      return sql`(not c.is_stopped and c.may_subscribe)`;
  }
}
