/**
 * The id of a delivery, the same at every attempt and every resend: a UUIDv8 (RFC 9562 section 5.8) that says which
 * delivery it is, so that nothing has to be stored or looked up for it.
 *
 *   llllllll-llll-8ltt-vttt-ssssssssssss     l lane (52 bits, random), t tag of the subscription (20 bits of its id),
 *                                            s sequence (48 bits); v is the variant, 8
 */

import { randomBytes } from 'node:crypto';
import { isId } from '../../crypto/ids.ts';

/** A new lane's number: 52 random bits, exact in a JavaScript number. */
export function newLane(): number {
  return Number(randomBytes(8).readBigUInt64BE() >> 12n);
}

/** What all ids of a lane's deliveries begin with. */
export function deliveryIdPrefix(lane: number, subscriptionId: string): string {
  const digits = lane.toString(16).padStart(13, '0');
  const tag = subscriptionId.slice(-5);
  return `${digits.slice(0, 8)}-${digits.slice(8, 12)}-8${digits[12]}${tag.slice(0, 2)}-8${tag.slice(2)}-`;
}

export function deliveryId(prefix: string, sequence: number): string {
  return prefix + sequence.toString(16).padStart(12, '0');
}

/** @returns undefined for what cannot be the id of a delivery; the caller compares the id with the subscription's */
export function parseDeliveryId(id: string): { lane: number; sequence: number } | undefined {
  if (!isId(id) || id[14] !== '8' || id[19] !== '8') return undefined;
  const lane = Number.parseInt(id.slice(0, 8) + id.slice(9, 13) + id[15], 16);
  return { lane, sequence: Number.parseInt(id.slice(24), 16) };
}
