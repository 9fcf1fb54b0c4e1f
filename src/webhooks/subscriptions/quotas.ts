/**
 * Quotas: limits on what one account, app or host may use. The operator sets them in `webhooks.quotas` of
 * `nuncio.config.ts`.
 */

export interface Quotas {
  /** Subscriptions of one account that have not ended, whoever created them. */
  readonly subscriptionsPerAccount: number;
  /** Subscriptions of one app: those of its grants and its own. */
  readonly subscriptionsPerClient: number;
  /** Subscriptions of one grant. Also limits the subscriptions that a user creates for themselves. */
  readonly subscriptionsPerGrant: number;
  /**
   * Subscriptions that may get one event of an account: the account's, and the own subscriptions of apps that act for
   * it.
   */
  readonly deliveriesPerEvent: number;
  /** Response bytes (headers and bodies) that attempts of one account may store per UTC day. */
  readonly responseBytesPerDay: number;
  /** Attempts in flight to one host that has accepted deliveries. */
  readonly attemptsPerHost: number;
  /** Attempts in flight to a host that has never accepted a delivery, and attempts per second to it. */
  readonly attemptsPerUnknownHost: number;
  readonly unknownHostRate: number;
  /** Attempts per second to one host that has accepted a delivery. */
  readonly hostRate: number;
  /** Attempts of one app: in flight, and per second. */
  readonly attemptsPerApp: number;
  readonly appRate: number;
  /** Bytes of event bodies that the engine keeps in memory for deliveries that wait or are in flight. */
  readonly waitingBytes: number;
  /** The same limit for the deliveries of one account. */
  readonly waitingBytesPerAccount: number;
  /** Lanes that a node leases at once. */
  readonly lanes: number;
  /** The same limit for the lanes of one account. */
  readonly lanesPerAccount: number;
}

export const defaultQuotas: Quotas = Object.freeze({
  subscriptionsPerAccount: 2_000,
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
  for (const [name, value] of Object.entries(declared ?? {})) {
    const place = `webhooks.quotas.${name}`;
    if (!Object.hasOwn(ranges, name)) {
      report(place, 'is not a known quota');
      continue;
    }
    const [min, max] = ranges[name as keyof Quotas];
    if (Number.isInteger(value) && value >= min && value <= max) quotas[name as keyof Quotas] = value;
    else report(place, `must be an integer from ${min} to ${max}`);
  }
  return Object.freeze(quotas);
}
