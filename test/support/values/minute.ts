/** Rate limits count by minutes. */

import { setTimeout as sleep } from 'node:timers/promises';

/** Waits if half of the minute is over, so that all requests of a test count in the same minute. */
export async function startOfMinute(): Promise<void> {
  const left = 60_000 - (Date.now() % 60_000);
  if (left < 30_000) await sleep(left);
}
