/**
 * Who may have how much of something limited that many share: attempts in flight, requests in progress, requests that wait. A
 * sharer gets as much as the others leave free, without a reserve. So one alone gets at most 7/16, and *n* with enough to do get
 * less than 1/(*n* + 1) each. A sharer with nothing may use the reserve.
 *
 * Groups share in the same way: the accounts of an app, the apps of an account, and the networks of a site. What a group may have has a reserve for those of it
 * that have nothing, so that one of them cannot keep the others out.
 */

/** The reserve is this part of the whole, rounded up. */
const reservedPart = 1 / 8;

/** So many sharers always find room for their first one, whatever the others do. */
export function reserveOf(size: number): number {
  return Math.ceil(size * reservedPart);
}

/** How much more a sharer may have. @param used of all sharers @param own of the sharer */
export function freeOf(size: number, used: number, own: number): number {
  return own === 0 ? size - used : size - reserveOf(size) - used - own;
}

/** What members of a group that have something leave to the others. A group gets half of what is not reserved. */
function groupReserveOf(size: number): number {
  return 2 * reserveOf(size / 2);
}

/** How much more a member of a group may have by the share of its group. @param ofGroup of all its members @param own of the member */
export function freeInGroup(size: number, used: number, ofGroup: number, own: number): number {
  return freeOf(size, own === 0 ? used : used + groupReserveOf(size), ofGroup);
}

/** Whether nobody can be above its share or that of its group, whoever has what is used. */
export function isFreeForAnybody(size: number, used: number): boolean {
  return used < size - reserveOf(size) - groupReserveOf(size) - used;
}

/** Whether a sharer may have one more. */
export function isFree(size: number, used: number, own: number): boolean {
  return freeOf(size, used, own) > 0;
}

/** Of what one sharer alone may have `max`. */
export function wholeOf(max: number): number {
  return Math.floor((2 * max) / (1 - reservedPart));
}
