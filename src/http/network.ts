/**
 * Addresses of clients and proxies, and the networks of an address, for limits per address. The owner of one IPv6 address
 * controls its whole /64. A site usually has a /48, which providers assign on request.
 */

import type { IncomingMessage } from 'node:http';
import { BlockList, isIP, isIPv4, isIPv6 } from 'node:net';
import ipaddr from 'ipaddr.js';

export interface Networks {
  /** The IPv4 address itself, or the IPv6 /64: one household. */
  near: string;
  /** The IPv6 /48: one site. Null for IPv4. */
  wide: string | null;
}

/** The limit of a /48 is this multiple of the limit of a /64. */
export const wideLimitFactor = 3;

export function networksOf(address: string): Networks {
  // Almost all addresses, without the parser. An IPv4-mapped one (::ffff:192.0.2.1) counts as IPv4.
  const short = address.startsWith('::ffff:') ? address.slice(7) : address;
  if (isIPv4(short)) return { near: short, wide: null };
  const bare = address.split('%', 1)[0] as string;
  if (!ipaddr.isValid(bare)) return { near: address, wide: null };
  const parsed = ipaddr.process(bare);
  if (parsed.kind() === 'ipv4') return { near: parsed.toString(), wide: null };
  const groups = (parsed as ipaddr.IPv6).parts.map((part) => part.toString(16));
  return { near: `${groups.slice(0, 4).join(':')}::/64`, wide: `${groups.slice(0, 3).join(':')}::/48` };
}

/** @param ranges addresses or CIDR ranges @returns whether an address is in one of them */
export function addressMatcher(ranges: readonly string[]): (address: string) => boolean {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = '', prefix] = range.split('/');
    const family = isIPv6(address) ? 'ipv6' : 'ipv4';
    if (prefix === undefined) list.addAddress(address, family);
    else list.addSubnet(address, Number(prefix), family);
  }
  return (address) => list.check(address, isIPv6(address) ? 'ipv6' : 'ipv4');
}

/** @returns the address of a request's client: of the connection, or the last one that proxies forward and that is none of them */
export function forwardedAddress(
  isProxy: (address: string) => boolean,
): (request: IncomingMessage) => string {
  return ({ socket: { remoteAddress = '' }, headers }) => {
    if (!isProxy(remoteAddress)) return remoteAddress;
    const forwarded = [headers['x-forwarded-for'] ?? ''].flat().join().split(',');
    return (
      forwarded.map((each) => each.trim()).findLast((each) => isIP(each) !== 0 && !isProxy(each)) ??
      remoteAddress
    );
  };
}
