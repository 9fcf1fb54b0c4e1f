/** Processor time of this thread. It says something only beside that of other work in the same run. */

const rounds = 10;
/** Linux may count in steps of some milliseconds. */
const leastMicros = 10_000;

/** How many times as much some work takes as other work. Work of less than a millisecond counts as one. */
export async function timesAsMuch(work: () => unknown, other: () => unknown): Promise<number> {
  const ofOther = await processorTime(other);
  return (await processorTime(work)) / ofOther;
}

async function processorTime(work: () => unknown): Promise<number> {
  const before = process.threadCpuUsage();
  for (let round = 0; round < rounds; round += 1) await work();
  const { user, system } = process.threadCpuUsage(before);
  return Math.max(user + system, leastMicros);
}
