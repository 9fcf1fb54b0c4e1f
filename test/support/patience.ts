/**
 * How long a test waits for a condition, in milliseconds. No result depends on the value. It is far longer than any
 * machine needs, and makes a test fail with the unmet condition before the runner's own timeout.
 */
export const patienceMs = 240_000;
