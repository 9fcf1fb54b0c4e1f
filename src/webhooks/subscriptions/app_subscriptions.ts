/**
 * Decides which apps may have subscriptions of their own (`owner: "client"`): all apps, verified apps, or only
 * clients that the operator marked with `may_subscribe`. Marked clients may always have them. The rule is checked
 * when a subscription is created, during fan-out, and before an attempt.
 */

import { sql } from 'kysely';
import { isOwnClient } from '../../clients/own_clients.ts';
import type { EventKind } from '../../events/kind.ts';
import type { AppSubscriptions } from './app_subscription_modes.ts';

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

/** The settings that decide what apps may receive. */
export interface EventRules {
  kinds: readonly EventKind[];
  appSubscriptions: AppSubscriptions;
}

/**
 * Whether an app with these scopes may receive events of the user by its own subscriptions. They need no scope of their
 * own, so pages tell users of them, unless `write:webhooks` already says the same. With `verified`, an app may be verified
 * later.
 */
export function mayReceiveEvents(
  { kinds, appSubscriptions }: EventRules,
  client: { id: string; maySubscribe: boolean },
  scopes: readonly string[],
): boolean {
  if (isOwnClient(client.id) || (appSubscriptions === 'off' && !client.maySubscribe)) return false;
  if (scopes.includes('write:webhooks')) return false;
  return kinds.some(({ object }) => object === null || scopes.includes(`read:${object}`));
}
