/** The operations of events, subscriptions and deliveries as the reference describes them. */

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

/** @param kinds the catalogue: an example of publishing needs one */
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
        description: 'What happened: the catalogue of kinds, and publishing by machine clients.',
      },
      { name: 'subscriptions', description: 'URLs that are told of events.' },
      { name: 'deliveries', description: 'What was sent, what came back, and what is sent again.' },
    ],
  };
}
