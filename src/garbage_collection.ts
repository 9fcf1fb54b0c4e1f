/**
 * Settings of V8's garbage collector. Its pauses are the longest ones of a lightly loaded server, and loading the modules leaves
 * more garbage than the server keeps objects.
 */

import { availableParallelism } from 'node:os';
import { getHeapStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/**
 * V8 collects the whole heap when it has grown by half. By default that depends on the load: a lightly loaded server collects after
 * a tenth, every few seconds, and a busy one later than after half.
 */
const growthFlag = '--heap-growing-percent=50';

/**
 * By default V8 collects with four threads or more. On two processors they keep the other threads of the server waiting for ten
 * milliseconds and more. With one thread for marking, a backlog would need 10 MiB more memory.
 */
const fewThreadsFlags = ['--no-parallel-scavenge', '--concurrent-marking-max-worker-num=2'];
const fewProcessors = 2;

/** The flags that `shortenCollectionPauses` sets for a number of processors. */
export function pauseFlags(processors: number): string[] {
  return processors <= fewProcessors ? [growthFlag, ...fewThreadsFlags] : [growthFlag];
}

/** Makes the pauses of a lightly loaded server rarer and shorter, in all threads. Call it before the threads start. */
export function shortenCollectionPauses(): void {
  for (const flag of pauseFlags(availableParallelism())) setFlagsFromString(flag);
}

interface CollectionOptions {
  type: 'major';
  execution: 'sync';
  /** Collects until nothing more is freed, and returns free pages to the system. */
  flavor: 'last-resort';
}

/** How long a thread must have rested. */
const restPauseMs = 10_000;
/**
 * A thread rests when it did at most so many pieces of work (requests, attempts) in that time. Processor time alone does not tell: a slow
 * machine, or one with a thousand idle streams, needs as much as a fast one for a few events a second.
 */
const restingWork = 10;
/** Above this share of a processor, the process does something else, such as a recovery, housekeeping, or sending events to streams. */
const restingShare = 0.05;
/** A collection is worth its pause when the heap has grown by this many bytes. */
const worthwhileBytes = 16_777_216;

export interface RestOptions {
  /** How many pieces of work the thread has done since its start. */
  workDone: () => number;
  /** Releases what is kept only to be fast. */
  beforeCollection?: () => void;
  /** Milliseconds without much work after which the thread rests. */
  pauseMs?: number;
}

/**
 * When the current thread rests, collects once what its start or a load left in its heap.
 *
 * @returns stops it
 */
export function collectAtRest({
  workDone,
  beforeCollection = () => {},
  pauseMs = restPauseMs,
}: RestOptions): () => void {
  let bytes = 0;
  let [workBefore, usedBefore, at] = [workDone(), usedMs(), performance.now()];
  const timer = setInterval(() => {
    const share = (usedMs() - usedBefore) / (performance.now() - at);
    const isResting = workDone() - workBefore <= restingWork && share <= restingShare;
    if (isResting && heapBytes() >= bytes + worthwhileBytes) {
      beforeCollection();
      collectGarbage();
      bytes = heapBytes();
    }
    [workBefore, usedBefore, at] = [workDone(), usedMs(), performance.now()];
  }, pauseMs);
  timer.unref();
  return () => clearInterval(timer);
}

/** Milliseconds of a processor that the process has used. */
function usedMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1_000;
}

/** Bytes of memory that the heap of the current thread occupies, used or not. */
function heapBytes(): number {
  return getHeapStatistics().total_physical_size;
}

/**
 * Collects the garbage of the current thread, and returns free pages to the system. V8 does so by itself only when the thread
 * allocates again. Blocks the thread for up to a few hundred milliseconds.
 */
function collectGarbage(): void {
  // Node offers `gc` only to processes that were started with this flag. Contexts that are created later have it, too. The flag stays
  // set, because threads share it.
  setFlagsFromString('--expose-gc');
  const gc = runInNewContext('gc') as (options: CollectionOptions) => void;
  gc({ type: 'major', execution: 'sync', flavor: 'last-resort' });
}
