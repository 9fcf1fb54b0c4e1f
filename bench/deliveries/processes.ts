/** Processor time and memory of processes and their threads. */

import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';

export function childrenOf(parent: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => statOf(pid)[1] === String(parent));
}

/** Fields of /proc/<pid>/stat after the name: state, parent, … */
function statOf(pid: number): string[] {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  } catch {
    return [];
  }
}

/** Microseconds of CPU that processes have used so far, including their ended children. */
export function cpuMicros(pids: number[]): number {
  let ticks = 0;
  for (const pid of pids) {
    const fields = statOf(pid);
    ticks += Number(fields[11] ?? 0) + Number(fields[12] ?? 0);
  }
  return ticks * microsOfTick();
}

/** Microseconds of CPU that each thread of a process has used so far, by thread id. */
export function threadMicros(pid: number): Map<string, { name: string; micros: number }> {
  const threads = new Map<string, { name: string; micros: number }>();
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    const stat = readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8');
    const name = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'));
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    threads.set(thread, { name, micros: (Number(fields[11]) + Number(fields[12])) * microsOfTick() });
  }
  return threads;
}

/**
 * Microseconds that each thread used since `before`: JavaScript threads by name, all others (garbage collection,
 * compiling) together.
 */
export function threadsSince(before: ReturnType<typeof threadMicros>, pid: number): Map<string, number> {
  const used = new Map<string, number>();
  for (const [thread, { name, micros }] of threadMicros(pid)) {
    const kind = /MainThread/.test(name) ? 'server' : /engine/.test(name) ? 'engine' : 'helpers';
    used.set(kind, (used.get(kind) ?? 0) + micros - (before.get(thread)?.micros ?? 0));
  }
  return used;
}

let tickMicros: number | undefined;
function microsOfTick(): number {
  tickMicros ??= 1_000_000 / Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));
  return tickMicros;
}

/** Resident memory of a process in bytes. */
export function residentBytes(pid: number): number {
  const match = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
  return Number(match?.[1]) * 1_024;
}
