/**
 * Quotas: limits on what one account, app or host may use. The operator sets them in `webhooks.quotas` of
 * `nuncio.config.ts`.
 */

import { reportUnknown } from '../../shared/nearest.ts';

export interface Quotas {
  /**
   * Subscriptions of one account, whoever created them. An app that has some gets at most as many as the others leave
   * free, after an eighth of the quota for apps that have none.
   * @default 2,400
   */
  readonly subscriptionsPerAccount: number;
  /**
   * Subscriptions of one app: those of its users' grants, and its own (at most 20). A user that has some gets
   * at most as many as the others leave free, after an eighth of the quota for users that have none. Users who
   * create some at the same time can exceed it a little.
   * @default 100,000
   */
  readonly subscriptionsPerClient: number;
  /**
   * Subscriptions of one user and one app, over all grants. The same quota applies to a user's own
   * subscriptions, and to the own subscriptions of a client that the operator marked.
   * @default 1,000
   */
  readonly subscriptionsPerGrant: number;
  /**
   * Subscriptions that can get one event of an account: those of the account, and the own subscriptions of
   * connected apps. Checked when a subscription of the account is created, not during fan-out. Apps that the
   * user connects later can add 20 each, and after the quota is lowered existing subscriptions still get
   * every event.
   * @default 2,500
   */
  readonly deliveriesPerEvent: number;
  /**
   * Bytes of response headers and bodies that attempts of one account store in a day (UTC). Above it,
   * attempts are stored without the response and with `response_omitted: true`. The same happens to an account
   * whose responses wait to be stored, above its share of 32 MiB. Nodes exchange their counts every 5 s, so together
   * they can exceed the quota by what they store in that time.
   * @default 67,108,864
   */
  readonly responseBytesPerDay: number;
  /**
   * Attempts in flight to one known host (an origin). The window of a host grows up to this quota, by one
   * with each accepted delivery, and failures of an account take away what its deliveries have added.
   * @default 512
   */
  readonly attemptsPerHost: number;
  /**
   * Attempts in flight to one unknown host; one account gets half of them. Subscriptions whose last delivery
   * was accepted before the node started have as many of their own. After ten failures of an account, that
   * account gets one attempt at a time, 1 s to 60 s apart.
   * @default 4
   */
  readonly attemptsPerUnknownHost: number;
  /**
   * Attempts per second to one unknown host.
   * @default 5
   */
  readonly unknownHostRate: number;
  /**
   * Attempts per second of each node to one known host. The default is about the maximum rate of a node.
   * @default 20,000
   */
  readonly hostRate: number;
  /**
   * Attempts in flight of one app, to all hosts.
   * @default 1,024
   */
  readonly attemptsPerApp: number;
  /**
   * Attempts per second of each node for one app.
   * @default 20,000
   */
  readonly appRate: number;
  /**
   * Bytes of event bodies in memory of a node, for deliveries that wait or are in flight. A body counts once,
   * however many deliveries share it.
   * @default 67,108,864
   */
  readonly waitingBytes: number;
  /**
   * The same limit for the deliveries of one account.
   * @default 16,777,216
   */
  readonly waitingBytesPerAccount: number;
  /**
   * Lanes that a node leases; a lane takes about 6 kB of memory.
   * @default 20,000
   */
  readonly lanes: number;
  /**
   * The same limit for one account.
   * @default 10,000
   */
  readonly lanesPerAccount: number;
}

export const defaultQuotas: Quotas = Object.freeze({
  subscriptionsPerAccount: 2_400,
  subscriptionsPerClient: 100_000,
  subscriptionsPerGrant: 1_000,
  deliveriesPerEvent: 2_500,
  responseBytesPerDay: 67_108_864,
  attemptsPerHost: 512,
  attemptsPerUnknownHost: 4,
  unknownHostRate: 5,
  hostRate: 20_000,
  attemptsPerApp: 1_024,
  appRate: 20_000,
  waitingBytes: 67_108_864,
  waitingBytesPerAccount: 16_777_216,
  lanes: 20_000,
  lanesPerAccount: 10_000,
});

/** Minimum and maximum of each quota. */
const ranges: Readonly<Record<keyof Quotas, readonly [number, number]>> = {
  subscriptionsPerAccount: [0, 1_000_000],
  subscriptionsPerClient: [0, 10_000_000],
  subscriptionsPerGrant: [0, 1_000_000],
  deliveriesPerEvent: [0, 1_000_000],
  responseBytesPerDay: [0, 1_099_511_627_776],
  attemptsPerHost: [1, 100_000],
  attemptsPerUnknownHost: [1, 100_000],
  unknownHostRate: [1, 100_000],
  hostRate: [1, 1_000_000],
  attemptsPerApp: [1, 100_000],
  appRate: [1, 1_000_000],
  waitingBytes: [4_194_304, 4_294_967_296],
  waitingBytesPerAccount: [1_048_576, 4_294_967_296],
  lanes: [100, 1_000_000],
  lanesPerAccount: [1, 1_000_000],
};

/** @param report called for each problem with its place and the reason */
export function readQuotas(
  declared: Partial<Quotas> | undefined,
  report: (place: string, reason: string) => void,
): Quotas {
  const quotas = { ...defaultQuotas };
  reportUnknown(declared ?? {}, ranges, 'webhooks.quotas', report);
  for (const [name, value] of Object.entries(declared ?? {})) {
    const place = `webhooks.quotas.${name}`;
    if (!Object.hasOwn(ranges, name)) continue;
    const [min, max] = ranges[name as keyof Quotas];
    if (Number.isInteger(value) && value >= min && value <= max) quotas[name as keyof Quotas] = value;
    else report(place, `must be an integer from ${min} to ${max}`);
  }
  return Object.freeze(quotas);
}
