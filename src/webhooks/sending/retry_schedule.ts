/**
 * When a failed attempt is repeated. The pause counts from the end of the attempt; a random part is only ever added.
 */

/** The most that is added to a pause, as a part of it. */
export const jitterMax = 0.2;
/** The longest that a subscriber's Retry-After is honoured, in seconds. */
export const retryAfterSecondsMax = 86_400;

/**
 * @param scheduleSeconds pauses after the first, second … failed attempt
 * @param attempts made so far, the failed one included
 * @param retryAfterSeconds what the subscriber asked for, or null
 * @returns milliseconds, or null where the attempts are used up
 */
export function pauseAfter(
  scheduleSeconds: readonly number[],
  attempts: number,
  retryAfterSeconds: number | null,
  random: number = Math.random(),
): number | null {
  const step = scheduleSeconds[attempts - 1];
  if (step === undefined) return null;
  return Math.max(step * 1_000 * (1 + jitterMax * random), (retryAfterSeconds ?? 0) * 1_000);
}

/**
 * Retry-After (RFC 9110 section 10.2.3) of a 429 or 503: seconds or a date.
 * @param now milliseconds since 1970
 * @returns seconds, a day at most; null for what is absent, past or not to be understood
 */
export function readRetryAfter(value: string | string[] | undefined, now: number): number | null {
  if (typeof value !== 'string') return null;
  const text = value.trim();
  const seconds = /^\d{1,10}$/.test(text) ? Number(text) : (readHttpDate(text) - now) / 1_000;
  return seconds > 0 ? Math.min(seconds, retryAfterSecondsMax) : null;
}

/** IMF-fixdate alone: what RFC 9110 section 5.6.7 lets anybody generate. NaN for anything else. */
function readHttpDate(text: string): number {
  return /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/.test(text)
    ? Date.parse(text)
    : Number.NaN;
}

/** Failures in a row that open a lane's circuit. */
export const circuitFailures = 10;
const probePauseMs = 1_000;
const probePauseMsMax = 60_000;

/**
 * How long a lane with an open circuit waits before its next probe: 1 s, doubled with each probe that fails, a minute
 * at most. Deliveries that wait meanwhile use up no attempt.
 * @returns milliseconds, 0 while the circuit is closed
 */
export function circuitPause(failures: number): number {
  if (failures < circuitFailures) return 0;
  return Math.min(probePauseMs * 2 ** Math.min(failures - circuitFailures, 10), probePauseMsMax);
}
