/**
 * Networks that an address belongs to, for whatever is counted by address. Whoever has one IPv6 address has all of its
 * /64; a site usually has a /48, and a provider gives one to whoever asks.
 */

import ipaddr from 'ipaddr.js';

export interface Networks {
  /** The IPv4 address itself, or the IPv6 /64: one household. */
  near: string;
  /** The IPv6 /48: one site. Null for IPv4. */
  wide: string | null;
}

/** How many times the limit of a /64 a /48 has as its own. */
export const wideFactor = 3;

export function networksOf(address: string): Networks {
  const bare = address.split('%', 1)[0] as string;
  if (!ipaddr.isValid(bare)) return { near: address, wide: null };
  // An IPv4 address in an IPv6 form (::ffff:192.0.2.1) counts as what it is.
  const parsed = ipaddr.process(bare);
  if (parsed.kind() === 'ipv4') return { near: parsed.toString(), wide: null };
  const groups = (parsed as ipaddr.IPv6).parts.map((part) => part.toString(16));
  return { near: `${groups.slice(0, 4).join(':')}::/64`, wide: `${groups.slice(0, 3).join(':')}::/48` };
}
