/**
 * One pass of a relay. Takes the lease, publishes batches until no event waits, and releases the lease. No transaction is open
 * while a request is in flight.
 */

import { readBody } from './body.ts';
import type { NewEvent } from './event.ts';
import { classifyFailure, type Rejection } from './rejection.ts';
import type { Settings } from './relay_options.ts';
import type { WaitingEvent } from './store.ts';

/** How long a lease lasts without a renewal, and the interval between renewals. */
const leaseMs = 5_000;
const renewMs = 1_500;

export interface Pass {
  settings: Settings;
  holder: string;
  signal: AbortSignal;
  /** Whether the pass ends after the batch in flight. */
  isEnding: () => boolean;
  /** Maximum number of events in the next batch. */
  batchEvents: () => number;
  /** Called after the outcome of each batch is recorded. */
  onBatch: () => void;
  /** Counts events as they are recorded, also when the pass fails later. */
  result: { published: number; rejected: number; isHeldElsewhere: boolean };
}

/** @throws errors of the publisher and of the database */
export async function runPass(pass: Pass): Promise<void> {
  const { settings, holder, result } = pass;
  const { store, batchBytes } = settings;
  if (!(await store.hasWaiting())) return;
  try {
    while (!pass.isEnding()) {
      result.isHeldElsewhere = !(await store.hold(holder, leaseMs));
      if (result.isHeldElsewhere) return;
      const limit = pass.batchEvents();
      const events = await store.read({ events: limit, bytes: batchBytes });
      if (events.length > 0) await publishWithLease(events, pass);
      pass.onBatch();
      if (events.length < limit && bytesOf(events) < batchBytes) return;
    }
  } finally {
    // If the release fails, the lease expires.
    await store.release(holder).catch(() => {});
  }
}

function bytesOf(events: readonly WaitingEvent[]): number {
  return events.reduce((sum, { body }) => sum + Buffer.byteLength(body), 0);
}

/** Publishes events and renews the lease while requests are in flight. */
async function publishWithLease(events: readonly WaitingEvent[], pass: Pass): Promise<void> {
  const { store } = pass.settings;
  let renewal: Promise<unknown> = Promise.resolve();
  const timer = setInterval(() => {
    // The pass detects a lost lease before the next batch.
    renewal = renewal.then(() => store.hold(pass.holder, leaseMs)).catch(() => {});
  }, renewMs);
  try {
    await publishAll(events, pass);
  } finally {
    clearInterval(timer);
    // A renewal after the release would take the lease again.
    await renewal;
  }
}

/** Publishes a batch in order. Records the events that the server rejects, and sends the others again. */
async function publishAll(events: readonly WaitingEvent[], pass: Pass): Promise<void> {
  const parts: WaitingEvent[][] = [await rejectUnreadable(events, pass)];
  for (let part = parts.pop(); part !== undefined; part = parts.pop()) {
    if (part.length === 0) continue;
    const error = await publishPart(part, pass);
    if (error === undefined) continue;
    const failure = classifyFailure(error.value, part);
    if (failure.kind === 'failed') throw error.value;
    if (failure.kind === 'rejected') {
      await recordRejections(failure.rejections, pass);
      const rejected = new Set(failure.rejections.map(({ event }) => event));
      parts.push(part.filter((event) => !rejected.has(event)));
    } else {
      const half = Math.ceil(part.length / 2);
      parts.push(part.slice(half), part.slice(0, half));
    }
  }
}

/** @returns the publisher's error, wrapped because any value can be thrown */
async function publishPart(
  part: readonly WaitingEvent[],
  { settings, signal, result }: Pass,
): Promise<{ value: unknown } | undefined> {
  const startedAt = performance.now();
  try {
    await settings.publisher.publish(part.map(toNewEvent), { signal });
  } catch (value) {
    return { value };
  }
  await settings.store.forget(part.map(({ position }) => position));
  result.published += part.length;
  settings.onPublished({ events: part.length, durationMs: performance.now() - startedAt });
  return undefined;
}

function toNewEvent({ id, kind, account, body }: WaitingEvent): NewEvent & { id: string } {
  return { id, kind, account, body: readBody(body) };
}

/** Rejects events whose body cannot be parsed. @returns the other events */
async function rejectUnreadable(events: readonly WaitingEvent[], pass: Pass): Promise<WaitingEvent[]> {
  const rejections: Rejection[] = [];
  const readable = events.filter((event) => {
    try {
      readBody(event.body);
      return true;
    } catch (error) {
      rejections.push({ event, reason: (error as Error).message });
      return false;
    }
  });
  if (rejections.length > 0) await recordRejections(rejections, pass);
  return readable;
}

async function recordRejections(
  rejections: readonly Rejection[],
  { settings, holder, result }: Pass,
): Promise<void> {
  await settings.store.reject(
    holder,
    rejections.map(({ event, reason }) => ({ position: event.position, reason })),
  );
  result.rejected += rejections.length;
  for (const { event, reason } of rejections) settings.onRejected({ id: event.id, kind: event.kind, reason });
}
