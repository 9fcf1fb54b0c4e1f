/** The requests that the console's pages send, with every filter parameter. */

import { deliveryStatuses } from '../../../src/webhooks/log/delivery.ts';
import { deliveryId, deliveryIdPrefix } from '../../../src/webhooks/subscriptions/delivery_id.ts';
import { historyDays, rareKind } from '../database/database_with_history.ts';

export interface Places {
  /** The subscription with most of the deliveries. */
  subscriptionId: string;
  lane: number;
  /** The number of its deliveries. */
  deliveries: number;
  appId: string;
  accountId: string;
}

/** Returns the path of every GET request. */
export function consoleReads(places: Places): string[] {
  return [
    ...['/oauth/userinfo', '/event-kinds', '/meta', '/app-invitations'],
    ...subscriptionReads(places),
    ...deliveryReads(places),
    ...appReads(places),
    ...adminReads(places),
  ];
}

/** An RFC 3339 time, encoded for a URL. */
export function daysAgo(days: number): string {
  return encodeURIComponent(new Date(Date.now() - days * 86_400_000).toISOString());
}

function subscriptionReads({ subscriptionId }: Places): string[] {
  const self = `/subscriptions/${subscriptionId}`;
  return [
    '/subscriptions?limit=50',
    self,
    `${self}/secret`,
    `${self}/health`,
    `${self}/health?since=${daysAgo(7)}`,
    `${self}/health?since=${daysAgo(historyDays)}`,
  ];
}

function deliveryReads({ subscriptionId, lane, deliveries }: Places): string[] {
  const list = `/subscriptions/${subscriptionId}/deliveries?limit=50`;
  const prefix = deliveryIdPrefix(lane, subscriptionId);
  const ids = [1, Math.floor(deliveries / 2), deliveries].map((sequence) => deliveryId(prefix, sequence));
  const middle = `&after=${Buffer.from(String(Math.floor(deliveries * 0.9))).toString('base64url')}`;
  const stretch = `&since=${daysAgo(12)}&until=${daysAgo(11)}`;
  const filters = [
    '',
    ...deliveryStatuses.map((state) => `&status=${state}`),
    ...['push', rareKind, 'no.such'].map((kind) => `&kind=${kind}`),
    `&status=failed&kind=${rareKind}`,
    `&status=failing&kind=${rareKind}`,
    `&status=succeeded&kind=${rareKind}`,
  ];
  return [
    ...filters.flatMap((filter) => [filter, filter + middle, filter + stretch]).map((query) => list + query),
    ...[`&since=${daysAgo(3)}`, `&until=${daysAgo(3)}`].map((query) => list + query),
    ...ids.map((id) => `${list}&id=${id}`),
    // The request that a live list repeats every second.
    `/subscriptions/${subscriptionId}/deliveries?limit=100`,
    ...ids.map((id) => `/deliveries/${id}`),
  ];
}

function appReads({ appId }: Places): string[] {
  const self = `/apps/${appId}`;
  return [
    '/apps?limit=50',
    self,
    `${self}/members?limit=200`,
    `${self}/subscriptions`,
    `${self}/health`,
    `${self}/health?since=${daysAgo(historyDays)}`,
  ];
}

function adminReads({ appId, accountId, subscriptionId }: Places): string[] {
  const filters: Record<string, string[]> = {
    accounts: ['', '&email=seeded-1', '&state=active', '&state=disabled'],
    apps: ['', '&name=seeded', '&state=verified', '&state=suspended', '&origin=account'],
    subscriptions: [
      '',
      '&state=disabled',
      '&failing=true',
      `&account=${accountId}`,
      `&client=${appId}`,
      `&client=${appId}&state=active`,
    ],
    audit: [
      '',
      '&kind=grant.created',
      '&kind=token.issued',
      '&kind=no.such',
      `&account=${accountId}`,
      `&client=${appId}`,
      `&since=${daysAgo(12)}&until=${daysAgo(11)}`,
      `&until=${daysAgo(20)}`,
    ],
    grants: ['', `&account=${accountId}`, `&client=${appId}`],
  };
  return [
    ...Object.entries(filters).flatMap(([name, queries]) =>
      queries.map((query) => `/admin/${name}?limit=50${query}`),
    ),
    ...['keys', 'nodes', 'settings', 'stats', `stats?since=${daysAgo(historyDays)}`].map(
      (name) => `/admin/${name}`,
    ),
    ...[`accounts/${accountId}`, `apps/${appId}`, `subscriptions/${subscriptionId}`].map(
      (path) => `/admin/${path}`,
    ),
  ];
}
