/**
 * The retry schedule, `Retry-After`, and the circuit breaker. A pause counts from the end of the attempt. Jitter only
 * ever lengthens it, except for agents (delivery_policy.ts).
 */

/** Maximum jitter, as a fraction of the pause. */
export const jitterMax = 0.2;
/** The longest `Retry-After` that is honored, in seconds. */
export const retryAfterSecondsMax = 86_400;

/**
 * @param scheduleSeconds pauses after the first, second … failed attempt
 * @param attempts attempts so far, including the failed one
 * @param retryAfterSeconds the subscriber's `Retry-After`, or null
 * @returns milliseconds; null if there are no attempts left
 */
export function pauseAfter(
  scheduleSeconds: readonly number[],
  attempts: number,
  retryAfterSeconds: number | null,
  random: number = Math.random(),
  jitter: (random: number) => number = (given) => 1 + jitterMax * given,
): number | null {
  const step = scheduleSeconds[attempts - 1];
  if (step === undefined) return null;
  return Math.max(step * 1_000 * jitter(random), (retryAfterSeconds ?? 0) * 1_000);
}

/**
 * Reads `Retry-After` (RFC 9110 section 10.2.3) of a 429 or 503: seconds or a date.
 * @param now milliseconds since 1970
 * @returns seconds, at most one day; null if it is absent, in the past or not valid
 */
export function readRetryAfter(value: string | string[] | undefined, now: number): number | null {
  if (typeof value !== 'string') return null;
  const text = value.trim();
  const seconds = /^\d{1,10}$/.test(text) ? Number(text) : (readHttpDate(text) - now) / 1_000;
  return seconds > 0 ? Math.min(seconds, retryAfterSecondsMax) : null;
}

/**
 * Reads an IMF-fixdate, the only format that RFC 9110 section 5.6.7 allows senders to generate. NaN for anything
 * else.
 */
function readHttpDate(text: string): number {
  return /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/.test(text)
    ? Date.parse(text)
    : Number.NaN;
}

/** Consecutive failures that open a lane's circuit. */
export const circuitFailures = 10;
const probePauseMs = 1_000;
/** Milliseconds between two probes, at most. */
export const probePauseMsMax = 60_000;

/**
 * The pause before the next probe of a lane with an open circuit: 1 s, doubled with each failed probe, at most a
 * minute. Waiting deliveries use up no attempts.
 * @param pauseMsMax milliseconds, if the policy of the format has a shorter limit
 * @returns milliseconds; 0 while the circuit is closed
 */
export function circuitPause(failures: number, pauseMsMax: number = probePauseMsMax): number {
  if (failures < circuitFailures) return 0;
  return Math.min(probePauseMs * 2 ** Math.min(failures - circuitFailures, 10), pauseMsMax);
}
