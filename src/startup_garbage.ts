/** Returns the memory that only start-up needed: loading modules leaves more garbage than the server keeps objects. */

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

interface CollectionOptions {
  type: 'major';
  execution: 'sync';
  /** Collects until nothing more is freed, and returns free pages to the system. */
  flavor: 'last-resort';
}

/**
 * Collects the garbage of the current thread. V8 does so by itself only when the thread allocates again. Blocks the thread for a
 * few hundred milliseconds, so call it before the thread has work to do.
 */
export function collectStartupGarbage(): void {
  // Node offers `gc` only to processes that were started with this flag. Contexts that are created later have it, too. The flag stays
  // set, because threads share it.
  setFlagsFromString('--expose-gc');
  const gc = runInNewContext('gc') as (options: CollectionOptions) => void;
  gc({ type: 'major', execution: 'sync', flavor: 'last-resort' });
}
