/**
 * The id of a delivery, the same at every attempt and every resend: a UUIDv8 (RFC 9562 section 5.8) that says which
 * delivery it is, so that nothing has to be stored or looked up for it.
 *
 *   llllllll-llll-8ltt-vttt-ssssssssssss     l lane (52 bits, random), t tag (20 bits of the subscription's id, XOR the tag
 *                                            of the epoch), s sequence (48 bits); v is the variant, 8
 *
 * After a failover the database may number other deliveries alike. From then on the lane's deliveries belong to another
 * epoch (see src/database/epoch.ts), whose tag makes their ids different ones. The tag of the first epoch is 0.
 */

import { randomBytes } from 'node:crypto';
import { isId } from '../../crypto/ids.ts';

/** A new lane's number: 52 random bits, exact in a JavaScript number. */
export function newLane(): number {
  return Number(randomBytes(8).readBigUInt64BE() >> 12n);
}

/** What the ids of a lane's deliveries of one epoch begin with. */
export function deliveryIdPrefix(lane: number, subscriptionId: string, epochTag = 0): string {
  const digits = lane.toString(16).padStart(13, '0');
  const tag = (Number.parseInt(subscriptionId.slice(-5), 16) ^ epochTag).toString(16).padStart(5, '0');
  return `${digits.slice(0, 8)}-${digits.slice(8, 12)}-8${digits[12]}${tag.slice(0, 2)}-8${tag.slice(2)}-`;
}

export function deliveryId(prefix: string, sequence: number): string {
  return prefix + sequence.toString(16).padStart(12, '0');
}

/** From a sequence on the deliveries of a lane belong to an epoch with this tag. */
export interface LaneEpoch {
  first: number;
  tag: number;
}

/** Makes the ids of one lane's deliveries, of whatever epoch. */
export class DeliveryIds {
  /** The latest epoch first. */
  readonly #epochs: readonly { first: number; prefix: string }[];

  /** @param epochs those after the first, in any order */
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

/** @returns undefined for what cannot be the id of a delivery; the caller compares the id with the subscription's */
export function parseDeliveryId(id: string): { lane: number; sequence: number } | undefined {
  if (!isId(id) || id[14] !== '8' || id[19] !== '8') return undefined;
  const lane = Number.parseInt(id.slice(0, 8) + id.slice(9, 13) + id[15], 16);
  return { lane, sequence: Number.parseInt(id.slice(24), 16) };
}
