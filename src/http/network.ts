/**
 * The networks of an address, for limits per address. The owner of one IPv6 address controls its whole /64. A site usually
 * has a /48, which providers assign on request.
 */

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
  const bare = address.split('%', 1)[0] as string;
  if (!ipaddr.isValid(bare)) return { near: address, wide: null };
  // Count an IPv4-mapped address (::ffff:192.0.2.1) as IPv4.
  const parsed = ipaddr.process(bare);
  if (parsed.kind() === 'ipv4') return { near: parsed.toString(), wide: null };
  const groups = (parsed as ipaddr.IPv6).parts.map((part) => part.toString(16));
  return { near: `${groups.slice(0, 4).join(':')}::/64`, wide: `${groups.slice(0, 3).join(':')}::/48` };
}
