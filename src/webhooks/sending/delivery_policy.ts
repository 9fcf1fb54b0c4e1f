/**
 * How deliveries of a format are attempted, where formats differ. Agents (format `agent`) follow MCP Events (SEP-3415): short
 * timeouts, few attempts, and a subscription that no response disables, because it ends by itself if nobody refreshes it.
 */

import type { Format } from '../subscriptions/subscription.ts';
import { jitterMax, probePauseMsMax } from './retry_schedule.ts';
import { exchangeTimeoutMs } from './sender.ts';

export interface DeliveryPolicy {
  /** Milliseconds for a whole exchange. */
  readonly timeoutMs: number;
  /** Maximum bytes of a body; null for no limit besides that of events. A larger body is never sent. */
  readonly bodyBytesMax: number | null;
  /** The factor of a pause of the retry schedule, for a random number from 0 to 1. */
  readonly jitter: (random: number) => number;
  /** Statuses after which a delivery is not attempted again. */
  readonly finalStatuses: ReadonlySet<number>;
  /** Whether a 410 disables the subscription. */
  readonly disablesWhenGone: boolean;
  /** Milliseconds between probes of an open circuit, at most. */
  readonly probePauseMsMax: number;
}

const ordinary: DeliveryPolicy = {
  timeoutMs: exchangeTimeoutMs,
  bodyBytesMax: null,
  // Only ever longer.
  jitter: (random) => 1 + jitterMax * random,
  finalStatuses: new Set(),
  disablesWhenGone: true,
  probePauseMsMax,
};

/** Seconds between the attempts of a delivery to an agent: four attempts in twelve and a half minutes. */
export const agentScheduleSeconds: readonly number[] = [30, 120, 600];

const agent: DeliveryPolicy = {
  timeoutMs: 10_000,
  bodyBytesMax: 262_144,
  jitter: (random) => 1 + jitterMax * (2 * random - 1),
  // 410 and 413 concern this delivery only.
  finalStatuses: new Set([410, 413]),
  disablesWhenGone: false,
  // More than a hundred attempts an hour, after which a failing subscription is held (subscriptions/agent_hold.ts).
  probePauseMsMax: 30_000,
};

export function policyOf(format: Format): DeliveryPolicy {
  return format === 'agent' ? agent : ordinary;
}
