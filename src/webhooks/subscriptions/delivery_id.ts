/**
 * Delivery ids. A delivery keeps its id over all attempts and resends. The id is a UUIDv8 (RFC 9562 section 5.8) that
 * encodes lane and sequence, so nothing is stored or looked up to build it.
 *
 *   llllllll-llll-8ltt-vttt-ssssssssssss     l lane (52 random bits)
 *                                            t tag (20 bits of the subscription's id, XOR the tag of the epoch)
 *                                            v variant (8)
 *                                            s sequence (48 bits)
 *
 * After a failover the database may give the same sequence to another delivery. From then on the lane's deliveries belong to
 * a new epoch (src/database/epoch.ts), whose tag makes their ids different. The tag of the first epoch is 0.
 *
 * Subscribers rely on this form: `inOrder` of `nuncio/verify` reads the sequence from the last group, and keeps one order for each
 * value of the others (src/verify/handling.ts).
 */

import { randomBytes } from 'node:crypto';
import { isId } from '../../crypto/ids.ts';

/** Returns the number of a new lane: 52 random bits, which a JavaScript number holds exactly. */
export function newLane(): number {
  return Number(randomBytes(8).readBigUInt64BE() >> 12n);
}

/** The start of the ids of all deliveries of one lane in one epoch. */
export function deliveryIdPrefix(lane: number, subscriptionId: string, epochTag = 0): string {
  const digits = lane.toString(16).padStart(13, '0');
  const tag = (Number.parseInt(subscriptionId.slice(-5), 16) ^ epochTag).toString(16).padStart(5, '0');
  return `${digits.slice(0, 8)}-${digits.slice(8, 12)}-8${digits[12]}${tag.slice(0, 2)}-8${tag.slice(2)}-`;
}

export function deliveryId(prefix: string, sequence: number): string {
  return prefix + sequence.toString(16).padStart(12, '0');
}

/** Deliveries from sequence `first` on belong to the epoch with this tag. */
export interface LaneEpoch {
  first: number;
  tag: number;
}

/** Builds the ids of one lane's deliveries, in all epochs. */
export class DeliveryIds {
  /** Latest epoch first. */
  readonly #epochs: readonly { first: number; prefix: string }[];

  /** @param epochs all epochs after the first one, in any order */
  constructor(lane: number, subscriptionId: string, epochs: readonly LaneEpoch[] = []) {
    this.#epochs = [{ first: 0, tag: 0 }, ...epochs]
      .toSorted((one, other) => other.first - one.first)
      .map(({ first, tag }) => ({ first, prefix: deliveryIdPrefix(lane, subscriptionId, tag) }));
  }

  of(sequence: number): string {
    const epoch = this.#epochs.find(({ first }) => first <= sequence) as { prefix: string };
    return deliveryId(epoch.prefix, sequence);
  }
}

/**
 * @returns undefined if the text cannot be a delivery id. The caller compares the id with the subscription's.
 */
export function parseDeliveryId(id: string): { lane: number; sequence: number } | undefined {
  if (!isId(id) || id[14] !== '8' || id[19] !== '8') return undefined;
  const lane = Number.parseInt(id.slice(0, 8) + id.slice(9, 13) + id[15], 16);
  return { lane, sequence: Number.parseInt(id.slice(24), 16) };
}
