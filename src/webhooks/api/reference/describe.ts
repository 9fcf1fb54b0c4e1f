/** Reference: operations on events, subscriptions and deliveries. */

import type { EventKind } from '../../../events/kind.ts';
import type { ReferencePart } from '../../../http/operation.ts';
import { deliveryOperations, recoveryOperations } from './delivery_operations.ts';
import { eventOperations } from './event_operations.ts';
import { requestSchemas, schemas } from './schemas.ts';
import {
  appSubscriptionOperations,
  healthOperations,
  subscriptionOperations,
} from './subscription_operations.ts';

/** @param kinds the platform's kinds, used in the publishing example */
export function describeWebhooks(kinds: readonly EventKind[]): ReferencePart {
  return {
    operations: [
      ...eventOperations(kinds),
      ...subscriptionOperations,
      ...appSubscriptionOperations,
      ...healthOperations,
      ...deliveryOperations,
      ...recoveryOperations,
    ],
    schemas: { ...schemas, ...requestSchemas(kinds) },
    tags: [
      {
        name: 'events',
        description: 'The catalogue of event kinds, and publishing by machine clients.',
      },
      { name: 'subscriptions', description: 'URLs that receive events.' },
      {
        name: 'deliveries',
        description: 'The delivery log: attempts and responses, resending and recovery.',
      },
    ],
  };
}
