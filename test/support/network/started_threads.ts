/** The threads that this process starts. */

import type { Worker } from 'node:worker_threads';

/** Collects the names of threads that start from now on. */
export function watchThreads(scope: { after: (hook: () => void) => unknown }): string[] {
  const names: string[] = [];
  const onWorker = (worker: Worker) => names.push(String(worker.threadName));
  process.on('worker', onWorker);
  scope.after(() => process.off('worker', onWorker));
  return names;
}
