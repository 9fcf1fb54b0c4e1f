/**
 * The events of one transaction on their way to the engine. One buffer holds all bodies. It is transferred and never copied, so a
 * thousand waiting events are a few objects.
 */

import type { StoredEvent } from '../../events/store.ts';
import type { EventContent } from '../sending/delivery_request.ts';

export interface PublishedBatch {
  /** Milliseconds since 1970. */
  createdAt: number;
  /** One per event; null if no event has one. */
  traceparents: (string | null)[] | null;
  /** In ascending order. */
  positions: Float64Array<ArrayBuffer>;
  ids: string[];
  kinds: string[];
  /** One per event; null if no event has one. */
  versions: (string | null)[] | null;
  accountIds: string[];
  /** One per event; null if no event has one. */
  accountExternalIds: (string | null)[] | null;
  /** Start of each body, and end of the last one. */
  offsets: Uint32Array<ArrayBuffer>;
  bodies: Uint8Array<ArrayBuffer>;
}

/** @param events events of one transaction in order of their positions, at least one */
export function packEvents(events: readonly StoredEvent[]): PublishedBatch {
  const [{ createdAt }] = events as [StoredEvent];
  const positions = new Float64Array(events.length);
  const offsets = new Uint32Array(events.length + 1);
  const bodies = Buffer.allocUnsafeSlow(events.reduce((bytes, { body }) => bytes + body.length, 0));
  const batch: PublishedBatch = {
    createdAt: createdAt.getTime(),
    traceparents: events.some(({ traceparent }) => traceparent !== null)
      ? events.map(({ traceparent }) => traceparent)
      : null,
    positions,
    ids: [],
    kinds: [],
    versions: events.some(({ version }) => version !== null) ? events.map(({ version }) => version) : null,
    accountIds: [],
    accountExternalIds: events.some(({ accountExternalId }) => accountExternalId !== null)
      ? events.map(({ accountExternalId }) => accountExternalId)
      : null,
    offsets,
    bodies,
  };
  let offset = 0;
  for (const [index, { position, id, kind, accountId, body }] of events.entries()) {
    positions[index] = position;
    batch.ids.push(id);
    batch.kinds.push(kind);
    batch.accountIds.push(accountId);
    offset += body.copy(bodies, offset);
    offsets[index + 1] = offset;
  }
  return batch;
}

/** The buffers that are transferred with the batch. */
export function transferListOf({ positions, offsets, bodies }: PublishedBatch): ArrayBuffer[] {
  return [positions.buffer, offsets.buffer, bodies.buffer];
}

/** @param positions in ascending order @returns the index of the position; negative if it is absent */
export function findPosition(positions: ArrayLike<number>, position: number): number {
  // The positions of most batches have no gaps.
  const guess = position - (positions[0] as number);
  if (positions[guess] === position) return guess;
  let [low, high] = [0, positions.length - 1];
  if (position < (positions[low] as number) || position > (positions[high] as number)) return -1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const found = positions[middle] as number;
    if (found === position) return middle;
    if (found < position) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

/**
 * Unpacks one event. Copies the body, because a delivery may wait for hours and must not keep the whole batch in
 * memory.
 */
export function unpackEvent(batch: PublishedBatch, index: number): EventContent {
  const { createdAt, traceparents, ids, kinds, versions, accountIds, accountExternalIds, offsets, bodies } =
    batch;
  return {
    id: ids[index] as string,
    kind: kinds[index] as string,
    version: versions?.[index] ?? null,
    accountId: accountIds[index] as string,
    accountExternalId: accountExternalIds?.[index] ?? null,
    body: copyOf(bodies, offsets[index] as number, offsets[index + 1] as number),
    createdAt,
    traceparent: traceparents?.[index] ?? null,
  };
}

function copyOf({ buffer, byteOffset }: Uint8Array<ArrayBuffer>, from: number, to: number): Buffer {
  const copy = Buffer.allocUnsafe(to - from);
  Buffer.from(buffer, byteOffset + from, to - from).copy(copy);
  return copy;
}
