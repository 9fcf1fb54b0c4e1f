/**
 * Who may have how much of something limited that many share: attempts in flight, requests in progress, requests that wait. A
 * sharer gets as much as the others leave free, without a reserve. So one alone gets at most 7/16, and *n* with enough to do get
 * less than 1/(*n* + 1) each. A sharer with nothing may use the reserve.
 */

/** The reserve is this part of the whole, rounded up. */
const reservedPart = 1 / 8;

/** So many sharers always find room for their first one, whatever the others do. */
export function reserveOf(size: number): number {
  return Math.ceil(size * reservedPart);
}

/** @param used of all sharers @param own of the sharer that wants one more */
export function isFree(size: number, used: number, own: number): boolean {
  return own === 0 ? used < size : own < size - reserveOf(size) - used;
}
