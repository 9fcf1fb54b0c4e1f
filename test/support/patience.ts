/**
 * How long a test waits before it gives up, in milliseconds. No result depends on it: it is far longer than
 * any machine needs, and only names what was waited for before the runner's own timeout.
 */
export const patienceMs = 240_000;
