/**
 * Loaded by `--import` into every thread of a measured server. When the parent process asks, it reports how many
 * bytes each thread has allocated for JavaScript objects so far, and which functions allocated them.
 *
 *   parent → (process message) → main thread → (broadcast) → every thread → (broadcast) → main thread → parent
 */

import { Session } from 'node:inspector';
import v8 from 'node:v8';
import { BroadcastChannel, isMainThread } from 'node:worker_threads';
import type { AllocationReport, AllocationSite, ProbeRequest } from './allocations.ts';

/** Average number of bytes between two samples. */
const sampleBytes = 16_384;

const channel = new BroadcastChannel('nuncio-probe');
const session = new Session();
session.connect();
channel.onmessage = (message: unknown) => take((message as { data: ProbeRequest | AllocationReport }).data);
channel.unref();

if (isMainThread) {
  process.on('message', (request: ProbeRequest) => {
    channel.postMessage(request);
    answer(request);
  });
  process.channel?.unref();
}

function take(message: ProbeRequest | AllocationReport): void {
  if (typeof message === 'string') answer(message);
  else if (isMainThread) process.send?.(message);
}

function answer(request: ProbeRequest): void {
  const report: AllocationReport = {
    thread: isMainThread ? 'server' : 'engine',
    bytes: v8.getHeapStatistics().total_allocated_bytes,
    sites: request === 'end' ? endSampling() : [],
  };
  if (request === 'begin') {
    session.post('HeapProfiler.startSampling', {
      samplingInterval: sampleBytes,
      includeObjectsCollectedByMajorGC: true,
      includeObjectsCollectedByMinorGC: true,
    });
  }
  if (isMainThread) process.send?.(report);
  else channel.postMessage(report);
}

interface ProfileNode {
  callFrame: { functionName: string; url: string; lineNumber: number };
  selfSize: number;
  children: ProfileNode[];
}

function endSampling(): AllocationSite[] {
  const sites = new Map<string, number>();
  const visit = (node: ProfileNode, caller: string) => {
    const { functionName, url, lineNumber } = node.callFrame;
    const file = url.split('/').slice(-2).join('/');
    const name = `${functionName || '(anonymous)'} ${file}:${lineNumber + 1}`;
    const key = `${name} < ${caller}`;
    if (node.selfSize > 0) sites.set(key, (sites.get(key) ?? 0) + node.selfSize);
    for (const child of node.children) visit(child, name);
  };
  session.post('HeapProfiler.stopSampling', (_error, result) => {
    visit((result as { profile: { head: ProfileNode } }).profile.head, '');
  });
  return [...sites].map(([name, bytes]) => ({ name, bytes })).sort((a, b) => b.bytes - a.bytes);
}
