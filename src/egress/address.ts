/**
 * Classifies IP addresses. Connections on behalf of third parties may go to public addresses only. IPv6 addresses that
 * embed an IPv4 address are classified by the embedded address.
 *
 * The lists are the IANA special-purpose registries (RFC 6890 and its successors), including formerly reserved ranges, and
 * ranges that are public by the registries, but belong to a cloud's inside.
 */

import ipaddr from 'ipaddr.js';

const ipv4Forbidden = ranges(
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  // IBM Cloud: services for its own machines.
  '161.26.0.0/16',
  '166.8.0.0/14',
  // Azure: the WireServer, which gives a machine its configuration and certificates.
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
);

/** Excluded ranges within 2000::/3. Nothing outside 2000::/3 is global unicast. */
const ipv6Forbidden = ranges(
  // IETF protocol assignments, including Teredo (2001::/32).
  '2001::/23',
  '2001:db8::/32',
  // 6to4: routes to the embedded IPv4 address.
  '2002::/16',
  '3fff::/20',
);
const globalUnicast = ranges('2000::/3');
const ipv4Mapped = ranges('::ffff:0:0/96');
/** NAT64 (RFC 6052): addresses that resolvers of IPv6-only networks return for IPv4 hosts. */
const nat64 = ranges('64:ff9b::/96');

type Range = { bytes: number[]; bits: number };

function ranges(...texts: string[]): Range[] {
  return texts.map((text) => {
    const [address, bits] = ipaddr.parseCIDR(text);
    return { bytes: address.toByteArray(), bits };
  });
}

/** Networks of organisations (RFC 1918, RFC 6598, RFC 4193). Link-local addresses, where clouds keep metadata, are not among them. */
const privateNetworks = [
  ...ranges('10.0.0.0/8', '100.64.0.0/10', '172.16.0.0/12', '192.168.0.0/16'),
  ...ranges('fc00::/7'),
];

/** @param address an IP literal as the system prints it (no brackets) */
export function isPrivateNetwork(address: string): boolean {
  if (!ipaddr.isValid(address) || address.includes('%')) return false;
  const bytes = ipaddr.process(address).toByteArray();
  return privateNetworks.some((range) => range.bytes.length === bytes.length && inRange(bytes, range));
}

export type AddressClass = 'public' | 'loopback' | 'forbidden';

/**
 * @param address an IP literal as the system prints it, without brackets
 * @returns `forbidden` also if the text is not an IP address
 */
export function classifyAddress(address: string): AddressClass {
  // A zone (fe80::1%eth0) exists only for link-local addresses.
  if (!ipaddr.isValid(address) || address.includes('%')) return 'forbidden';
  const bytes = ipaddr.parse(address).toByteArray();
  return bytes.length === 4 ? classifyIpv4(bytes) : classifyIpv6(bytes);
}

function classifyIpv4(bytes: number[]): AddressClass {
  if (bytes[0] === 127) return 'loopback';
  return ipv4Forbidden.some((range) => inRange(bytes, range)) ? 'forbidden' : 'public';
}

function classifyIpv6(bytes: number[]): AddressClass {
  const carried = bytes.slice(12);
  if (inAny(bytes, ipv4Mapped)) return classifyIpv4(carried);
  if (inAny(bytes, nat64)) return classifyIpv4(carried) === 'public' ? 'public' : 'forbidden';
  if (bytes.slice(0, 15).every((byte) => byte === 0) && bytes[15] === 1) return 'loopback';
  if (!inAny(bytes, globalUnicast) || inAny(bytes, ipv6Forbidden)) return 'forbidden';
  // ISATAP (RFC 5214): the interface identifier is 00-00-5e-fe or 02-00-5e-fe followed by the IPv4 address.
  const isIsatap =
    (bytes[8] === 0 || bytes[8] === 2) && bytes[9] === 0 && bytes[10] === 0x5e && bytes[11] === 0xfe;
  return isIsatap && classifyIpv4(carried) !== 'public' ? 'forbidden' : 'public';
}

function inAny(bytes: number[], list: Range[]): boolean {
  return list.some((range) => inRange(bytes, range));
}

function inRange(bytes: number[], range: Range): boolean {
  for (let bit = 0; bit < range.bits; bit += 8) {
    const index = bit >> 3;
    const mask = range.bits - bit >= 8 ? 0xff : (0xff << (8 - (range.bits - bit))) & 0xff;
    if (((bytes[index] as number) & mask) !== ((range.bytes[index] as number) & mask)) return false;
  }
  return true;
}

/** Normalizes an address for comparison. An IPv4-mapped IPv6 address becomes the IPv4 address. */
export function canonicalAddress(address: string): string {
  return ipaddr.isValid(address) ? ipaddr.process(address).toNormalizedString() : address;
}
