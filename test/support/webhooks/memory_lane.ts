/** A lane in memory, without a server. */

import { DeliveryMemory, Tenant } from '../../../src/webhooks/lanes/delivery_memory.ts';
import type { LoadedDelivery } from '../../../src/webhooks/lanes/due_deliveries.ts';
import { Lane } from '../../../src/webhooks/lanes/lane.ts';
import type { LaneState } from '../../../src/webhooks/lanes/lane_store.ts';
import { createTemplate, type EventContent } from '../../../src/webhooks/sending/delivery_request.ts';
import type { Subscription } from '../../../src/webhooks/subscriptions/subscription.ts';

export const eventOf = (accountId: string | null): EventContent => ({
  id: 'event',
  kind: 'push',
  accountId,
  body: Buffer.from('{}'),
  createdAt: 0,
  version: null,
  traceparent: null,
  accountExternalId: null,
});

type Fields = Partial<Subscription> & { loaded?: Partial<LaneState> };

/** @param accountId null for the lane of an app's own subscription */
export function createLane(accountId: string | null, fields: Fields = {}): Lane {
  return new Lane(laneState(accountId, fields), 1_000, new Tenant('tenant', new DeliveryMemory()));
}

/** The state of a lane as it is loaded. */
export function laneState(accountId: string | null, { loaded = {}, ...fields }: Fields = {}): LaneState {
  const subscription = {
    id: '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88',
    lane: 1,
    url: 'https://hooks.example/',
    accountId,
    rateLimit: null,
    ordered: false,
    ...fields,
  } as Subscription;
  return {
    subscription,
    creatorId: null,
    secrets: { secret: 'whsec_', previous: null },
    template: createTemplate(subscription),
    closesInMs: Number.POSITIVE_INFINITY,
    revision: 1,
    isOpen: true,
    head: 100,
    cursor: 0,
    attempted: [],
    failures: 0,
    pauseMs: 0,
    wasPaused: false,
    retryMs: null,
    retriesPending: 0,
    ...loaded,
  };
}

/** Adds a delivery that was never attempted. */
export function add(lane: Lane, sequence: number, accountId: string | null = null): void {
  lane.addFresh(deliveryOf(sequence, accountId));
}

export function deliveryOf(
  sequence: number,
  accountId: string | null,
  retry: LoadedDelivery['retry'] = null,
): LoadedDelivery {
  return { sequence, day: '2026-01-01', position: sequence, event: eventOf(accountId), retry };
}
