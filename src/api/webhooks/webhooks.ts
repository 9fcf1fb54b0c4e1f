/** Registers the webhooks API: subscriptions, the delivery log and recoveries. */

import type { EventKind } from '../../events/kind.ts';
import type { ReferencePart } from '../../http/operation.ts';
import { StreamSlots } from '../../http/stream_slots.ts';
import { appSubscriptionRoutes, registerAppSubscriptions } from './app_subscription_routes.ts';
import { deliveryRoutes, registerDeliveries } from './delivery_routes.ts';
import { filterRoutes, registerFilters } from './filter_routes.ts';
import { healthRoutes, registerHealthRoutes } from './health_routes.ts';
import { pullRoutes, registerPull } from './pull_routes.ts';
import { recoveryRoutes, registerRecoveries } from './recovery_routes.ts';
import { subscriptionBodies } from './schemas.ts';
import type { WebhookRoutesOptions } from './subscription_access.ts';
import { registerSubscriptions, subscriptionRoutes } from './subscription_routes.ts';

/** @param kinds the platform's kinds. @param wake called when there is a new recovery */
export function registerWebhooksApi(
  options: WebhookRoutesOptions,
  kinds: readonly EventKind[],
  wake: () => void,
): void {
  const bodies = subscriptionBodies(kinds);
  registerSubscriptions(options, subscriptionRoutes(bodies));
  registerAppSubscriptions(options, appSubscriptionRoutes(bodies));
  registerHealthRoutes(options);
  const streams = new StreamSlots(options.api);
  registerDeliveries(options, streams);
  registerPull(options, streams);
  registerRecoveries(options, wake);
  registerFilters(options);
}

/** @param kinds the platform's kinds */
export function webhooksPart(kinds: readonly EventKind[]): ReferencePart {
  const bodies = subscriptionBodies(kinds);
  return {
    operations: [
      subscriptionRoutes(bodies),
      appSubscriptionRoutes(bodies),
      pullRoutes,
      healthRoutes,
      deliveryRoutes,
      recoveryRoutes,
      filterRoutes,
    ].flatMap((routes) => Object.values(routes)),
    tags: [
      { name: 'subscriptions', description: 'URLs that receive events.' },
      {
        name: 'deliveries',
        description: 'The delivery log: attempts and responses, resending and recovery.',
      },
    ],
  };
}
