/**
 * Which apps may have subscriptions of their own (`owner: "client"`): every app, those that are verified, or only
 * clients that the operator marked one by one (`may_subscribe`), who always may. Asked when one is made, when events
 * become deliveries, and when they are sent.
 */

import { sql } from 'kysely';

export const appSubscriptionModes = ['all', 'verified', 'off'] as const;
export type AppSubscriptions = (typeof appSubscriptionModes)[number];

/** Own subscriptions of one app; clients that the operator marked have as many as anybody. */
export const appSubscriptionsMax = 20;

/** Of a row `c` of `clients`: whether it may have its own. To be part of a `where`. */
export function mayHaveOwn(mode: AppSubscriptions) {
  switch (mode) {
    case 'all':
      return sql`(not c.is_stopped)`;
    case 'verified':
      return sql`(not c.is_stopped and (c.may_subscribe or c.verified_at is not null or c.origin = 'operator'))`;
    case 'off':
      return sql`(not c.is_stopped and c.may_subscribe)`;
  }
}
