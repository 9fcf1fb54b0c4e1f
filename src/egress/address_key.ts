/** What counts as one address in the limits on attempts. */

import { isIP } from 'node:net';
import { classifyAddress } from './address.ts';

/**
 * The key that counts as one address: an IPv4 address, or the /64 prefix of an IPv6 address, which one household has.
 * In development each loopback port counts by itself.
 * @param address in the form of `canonicalAddress`
 */
export function addressKey(address: string, port: string): string {
  if (classifyAddress(address) === 'loopback') return `${address} ${port}`;
  if (isIP(address) !== 6) return address;
  const [left = '', right] = address.split('::');
  const first = left === '' ? [] : left.split(':');
  const last = right === undefined || right === '' ? [] : right.split(':');
  const gap = right === undefined ? 0 : Math.max(8 - first.length - last.length, 0);
  return [...first, ...new Array<string>(gap).fill('0'), ...last].slice(0, 4).join(':');
}
