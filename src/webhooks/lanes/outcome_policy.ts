/**
 * What an answer means: accepted, to be repeated and when, given up, or the end of the subscription. Decides only.
 */

import { pingName } from '../../events/built_in_names.ts';
import { type AttemptError, attemptErrors } from '../sending/attempt_error.ts';
import type { ExchangeResult } from '../sending/exchange.ts';
import { circuitPause, pauseAfter, readRetryAfter } from '../sending/retry_schedule.ts';
import type { Lane, Waiting } from './lane.ts';

/** What the database counts to; attempts beyond have the last number. */
export const attemptNumberMax = 32_767;

export type Trigger = 's' | 'm' | 'r';

export interface AttemptRecord {
  number: number;
  trigger: Trigger;
  revision: number;
  /** Of the process's own clock, in milliseconds. */
  startedAt: number;
  durationMs: number;
  firstByteMs: number | null;
  status: number | null;
  error: AttemptError | null;
  connection: string | null;
  headers: string | null;
  body: Buffer | null;
  truncated: boolean;
  /** Whether headers and body were left out, because the budget of the day is used up. */
  isResponseOmitted?: boolean;
}

export interface RetryRecord {
  state: 'pending' | 'failed' | 'succeeded' | 'cancelled';
  attempts: number;
  /** Milliseconds after the attempt's end; null for not again. */
  dueMs: number | null;
}

export interface Outcome {
  lane: number;
  sequence: number;
  day: string;
  /** Null where nothing was sent: it was not allowed. */
  attempt: AttemptRecord | null;
  /** What is to be kept of it; null for nothing, it was accepted. */
  retry: RetryRecord | null;
  /** Whether there was a row of it in `retries` before. */
  hadRetry: boolean;
  /** Whether a request by hand was fulfilled. */
  wasManual: boolean;
  /** Told once it is durable. */
  onWritten?: () => void;
}

export interface AttemptEnd {
  lane: Lane;
  waiting: Waiting;
  number: number;
  /** Of the subscription, when the attempt was started. */
  revision: number;
  answer: ExchangeResult;
  /** Milliseconds since 1970. */
  now: number;
  scheduleSeconds: readonly number[];
}

export interface OutcomeDecision {
  outcome: Outcome;
  /** Milliseconds for which the whole lane is to wait; 0 for not. */
  pauseMs: number;
  isPing: boolean;
  /** The part of it that the subscriber asked for: no success of another attempt ends it. */
  retryAfterMs: number;
  /** 410: the subscriber wants no more of it. */
  isGone: boolean;
}

export function decideOutcome(end: AttemptEnd): OutcomeDecision {
  const { lane, waiting, number, answer, now } = end;
  const { status } = answer;
  const isAccepted = answer.error === null && status !== null && status >= 200 && status <= 299;
  // Specification of deliveries: only these two say when to come again.
  const asked =
    status === 429 || status === 503 ? readRetryAfter(answer.headers?.['retry-after'], now) : null;
  const wasManual = waiting.retry?.isManual ?? false;
  const isPing = waiting.event.kind === pingName;
  const retryAfterMs = isAccepted ? 0 : (asked ?? 0) * 1_000;
  return {
    outcome: {
      lane: lane.id,
      sequence: waiting.sequence,
      day: waiting.day,
      attempt: toRecord(end, isAccepted, wasManual),
      retry: isAccepted ? null : toRetry(waiting, number, pauseAfter(end.scheduleSeconds, number, asked)),
      hadRetry: waiting.retry !== null,
      wasManual,
    },
    pauseMs: isAccepted ? 0 : Math.max(retryAfterMs, isPing ? 0 : circuitPause(lane.failures + 1)),
    retryAfterMs,
    isPing,
    isGone: status === 410 && answer.error === null,
  };
}

function toRetry(waiting: Waiting, attempts: number, pauseMs: number | null): RetryRecord {
  const before = waiting.retry?.state ?? 'pending';
  // Sent by hand once more after it had succeeded or failed for good: the schedule is over.
  if (before !== 'pending') return { state: before, attempts, dueMs: null };
  return { state: pauseMs === null ? 'failed' : 'pending', attempts, dueMs: pauseMs };
}

function toRecord(
  { number, revision, answer }: AttemptEnd,
  isAccepted: boolean,
  wasManual: boolean,
): AttemptRecord {
  const { startedAt, endedAt, firstByteAt, wasConnected, connection, reason } = answer;
  return {
    number,
    trigger: wasManual ? 'm' : 's',
    revision,
    startedAt,
    durationMs: endedAt - startedAt,
    firstByteMs: firstByteAt === null ? null : firstByteAt - startedAt,
    status: answer.status,
    error: isAccepted ? null : (answer.error ?? 'unexpected_status'),
    // Null for a kept one; without a family where there was none.
    connection: wasConnected && connection === null ? null : JSON.stringify({ ...connection, reason }),
    headers: answer.headersText,
    body: answer.body,
    truncated: answer.truncated,
  };
}

/** A sentence for the developer who reads the log. */
export function describeError(code: string): string {
  return Object.hasOwn(attemptErrors, code) ? attemptErrors[code as keyof typeof attemptErrors] : code;
}
