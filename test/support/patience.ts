/**
 * Milliseconds after which something that a test waits for is taken never to come. No test depends on it: it is far more
 * than any machine needs, and only says sooner than the runner's own limit what was waited for.
 */
export const patienceMs = 240_000;
