/**
 * Decides what the result of an attempt means for its delivery, its lane and its subscription.
 *
 *   waiting → succeeded (no row in `retries`) | pending (another attempt is due) | failed (no attempts left)
 *   waiting → cancelled, without an attempt, if the owner lost the right to it or the subscription the kind
 */

import { pingName } from '../../events/built_in_names.ts';
import { type AttemptError, attemptErrors } from '../sending/attempt_error.ts';
import { policyOf } from '../sending/delivery_policy.ts';
import { hideInBody, hideInHeaders } from '../sending/echoed_secrets.ts';
import type { ExchangeResult } from '../sending/exchange.ts';
import { circuitPause, pauseAfter, readRetryAfter } from '../sending/retry_schedule.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { Lane } from './lane.ts';

/** The largest number that the column holds. Later attempts have the same number. */
export const attemptNumberMax = 32_767;

export type Trigger = 's' | 'm' | 'r';

export interface AttemptRecord {
  number: number;
  trigger: Trigger;
  revision: number;
  /** Milliseconds on the monotonic clock. */
  startedAt: number;
  durationMs: number;
  firstByteMs: number | null;
  status: number | null;
  error: AttemptError | null;
  connection: string | null;
  headers: string | null;
  body: Buffer | null;
  truncated: boolean;
  /** Whether headers and body were left out: the day's budget is used up, or too many wait to be written. */
  isResponseOmitted?: boolean;
}

export interface RetryRecord {
  state: 'pending' | 'failed' | 'succeeded' | 'cancelled';
  attempts: number;
  /** Milliseconds after the attempt's end; null for no further attempt. */
  dueMs: number | null;
}

export interface Outcome {
  lane: number;
  sequence: number;
  day: string;
  /** Null if nothing was sent. */
  attempt: AttemptRecord | null;
  /** The delivery's row in `retries`; null if it needs none, because it succeeded. */
  retry: RetryRecord | null;
  /** Whether the delivery had a row in `retries` before. */
  hadRetry: boolean;
  /** Whether the attempt fulfilled a resend by hand. */
  wasManual: boolean;
  /** Called once the outcome is durable. */
  onWritten?: () => void;
}

export interface AttemptEnd {
  lane: Lane;
  waiting: LoadedDelivery;
  number: number;
  /** Revision of the subscription when the attempt started. */
  revision: number;
  result: ExchangeResult;
  /** What the request authenticated with: not stored where the response repeats it. */
  secrets?: readonly string[];
  /** Milliseconds since 1970. */
  now: number;
  scheduleSeconds: readonly number[];
}

export interface OutcomeDecision {
  outcome: Outcome;
  /** Milliseconds that the whole lane pauses; 0 for no pause. */
  pauseMs: number;
  /** Whether the result says nothing about the subscriber: of a ping, or of a body that could not be sent. */
  isNeutral: boolean;
  /** Whether it may be due to what the event contains, in the lane of an app's own subscription (`recordRefusal` in lane.ts). */
  isRefusal: boolean;
  /** The part of the pause that the subscriber requested. A success of another attempt does not end it. */
  retryAfterMs: number;
  /** 410, where it means that the subscriber wants no more deliveries. */
  isGone: boolean;
}

export function decideOutcome(end: AttemptEnd): OutcomeDecision {
  const { lane, waiting, number, result, now } = end;
  const { status } = result;
  const isAccepted = result.error === null && status !== null && status >= 200 && status <= 299;
  // Only these two statuses have a `Retry-After` that is honored.
  const asked =
    status === 429 || status === 503 ? readRetryAfter(result.headers?.['retry-after'], now) : null;
  const wasManual = waiting.retry?.isManual ?? false;
  const isNeutral = waiting.event.kind === pingName || sentNothing(result);
  const policy = policyOf(lane.subscription.format);
  const isFinal =
    result.error === 'body_too_large' || (result.error === null && policy.finalStatuses.has(status ?? 0));
  const retryAfterMs = isAccepted ? 0 : (asked ?? 0) * 1_000;
  const isRefusal = !isNeutral && lane.mayRefuse && result.error === null && refusesEvent(status);
  return {
    outcome: {
      lane: lane.id,
      sequence: waiting.sequence,
      day: waiting.day,
      attempt: toRecord(end, isAccepted, wasManual),
      retry: isAccepted
        ? null
        : toRetry(
            waiting,
            number,
            isFinal ? null : pauseAfter(end.scheduleSeconds, number, asked, Math.random(), policy.jitter),
          ),
      hadRetry: waiting.retry !== null,
      wasManual,
    },
    pauseMs: isAccepted
      ? 0
      : Math.max(
          retryAfterMs,
          isNeutral || isRefusal ? 0 : circuitPause(lane.circuitCount + 1, policy.probePauseMsMax),
        ),
    isRefusal,
    retryAfterMs,
    isNeutral,
    isGone: policy.disablesWhenGone && status === 410 && result.error === null,
  };
}

/** Statuses above 399 that say that nothing is accepted now, whatever it contains. */
const statusesOfAll: ReadonlySet<number> = new Set([401, 407, 408, 429, 502, 503, 504]);

function refusesEvent(status: number | null): boolean {
  return status !== null && status >= 400 && !statusesOfAll.has(status);
}

/** Whether there was no body to send. */
export function sentNothing({ error }: Pick<ExchangeResult, 'error'>): boolean {
  return error === 'conversion_error' || error === 'body_too_large';
}

function toRetry(waiting: LoadedDelivery, attempts: number, pauseMs: number | null): RetryRecord {
  const before = waiting.retry?.state ?? 'pending';
  // The delivery had already succeeded or failed, and was resent by hand. Its retry schedule is over.
  if (before !== 'pending') return { state: before, attempts, dueMs: null };
  return { state: pauseMs === null ? 'failed' : 'pending', attempts, dueMs: pauseMs };
}

function toRecord(
  { number, revision, result, secrets = [] }: AttemptEnd,
  isAccepted: boolean,
  wasManual: boolean,
): AttemptRecord {
  const { startedAt, endedAt, firstByteAt, wasConnected, connection, reason } = result;
  return {
    number,
    trigger: wasManual ? 'm' : 's',
    revision,
    startedAt,
    durationMs: endedAt - startedAt,
    firstByteMs: firstByteAt === null ? null : firstByteAt - startedAt,
    status: result.status,
    error: isAccepted ? null : (result.error ?? 'unexpected_status'),
    // Null for a kept connection. Without a family if no connection was opened.
    connection: wasConnected && connection === null ? null : JSON.stringify({ ...connection, reason }),
    headers: secrets.length === 0 ? result.headersText : hideInHeaders(result.headersText, secrets),
    body: secrets.length === 0 ? result.body : hideInBody(result.body, result.truncated, secrets),
    truncated: result.truncated,
  };
}

/** The error code as a sentence for the developer who reads the log. */
export function describeError(code: string): string {
  return Object.hasOwn(attemptErrors, code) ? attemptErrors[code as keyof typeof attemptErrors] : code;
}
