/**
 * One pass of a relay: takes the lease, publishes batch after batch until nothing waits, and releases the lease. No transaction
 * is open while a request is in flight.
 */

import { readBody } from './body.ts';
import type { NewEvent } from './event.ts';
import { judge, type Rejection } from './rejection.ts';
import type { Settings } from './relay_options.ts';
import type { WaitingEvent } from './store.ts';

/** Milliseconds that a lease lasts without being renewed, and between two renewals. */
const leaseMs = 5_000;
const renewMs = 1_500;

export interface Pass {
  settings: Settings;
  holder: string;
  signal: AbortSignal;
  /** Whether to end after the batch in flight. */
  isEnding: () => boolean;
  /** Events of the next batch at most. */
  batchEvents: () => number;
  /** Called after each batch that was recorded. */
  onBatch: () => void;
  /** Counts what is done, also where the pass fails. */
  result: { published: number; rejected: number; isHeldElsewhere: boolean };
}

/** @throws what the publisher or the database throws */
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
      if (events.length > 0) await publishHolding(events, pass);
      pass.onBatch();
      if (events.length < limit && bytesOf(events) < batchBytes) return;
    }
  } finally {
    // Where that fails the lease ends by itself.
    await store.release(holder).catch(() => {});
  }
}

function bytesOf(events: readonly WaitingEvent[]): number {
  return events.reduce((sum, { body }) => sum + Buffer.byteLength(body), 0);
}

/** Publishes events and renews the lease meanwhile. */
async function publishHolding(events: readonly WaitingEvent[], pass: Pass): Promise<void> {
  const { store } = pass.settings;
  let renewal: Promise<unknown> = Promise.resolve();
  const timer = setInterval(() => {
    // A lease that is lost is noticed before the next batch.
    renewal = renewal.then(() => store.hold(pass.holder, leaseMs)).catch(() => {});
  }, renewMs);
  try {
    await publishAll(events, pass);
  } finally {
    clearInterval(timer);
    // A renewal that comes after the release would take the lease again.
    await renewal;
  }
}

/** Publishes a batch in its order. What the server rejects is set aside, and the rest is sent again. */
async function publishAll(events: readonly WaitingEvent[], pass: Pass): Promise<void> {
  const parts: WaitingEvent[][] = [await withoutUnreadable(events, pass)];
  for (let part = parts.pop(); part !== undefined; part = parts.pop()) {
    if (part.length === 0) continue;
    const error = await publishPart(part, pass);
    if (error === undefined) continue;
    const verdict = judge(error.value, part);
    if (verdict.kind === 'failed') throw error.value;
    if (verdict.kind === 'rejected') {
      await setAside(verdict.rejections, pass);
      const rejected = new Set(verdict.rejections.map(({ event }) => event));
      parts.push(part.filter((event) => !rejected.has(event)));
    } else {
      const half = Math.ceil(part.length / 2);
      parts.push(part.slice(half), part.slice(0, half));
    }
  }
}

/** @returns what was thrown instead of an outcome */
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

/** Sets aside what cannot be sent at all. */
async function withoutUnreadable(events: readonly WaitingEvent[], pass: Pass): Promise<WaitingEvent[]> {
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
  if (rejections.length > 0) await setAside(rejections, pass);
  return readable;
}

async function setAside(rejections: readonly Rejection[], { settings, holder, result }: Pass): Promise<void> {
  await settings.store.reject(
    holder,
    rejections.map(({ event, reason }) => ({ position: event.position, reason })),
  );
  result.rejected += rejections.length;
  for (const { event, reason } of rejections) settings.onRejected({ id: event.id, kind: event.kind, reason });
}
