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

type Address = ReturnType<typeof ipaddr.parse>;
type Range = ReturnType<typeof ipaddr.parseCIDR>;

function ranges(...texts: string[]): Range[] {
  return texts.map((text) => ipaddr.parseCIDR(text));
}

/** Networks of organisations (RFC 1918, RFC 6598, RFC 4193). Link-local addresses, where clouds keep metadata, are not among them. */
const privateNetworks = [
  ...ranges('10.0.0.0/8', '100.64.0.0/10', '172.16.0.0/12', '192.168.0.0/16'),
  ...ranges('fc00::/7'),
];

export const privateOrLoopback: readonly Range[] = [...privateNetworks, ...ranges('127.0.0.0/8', '::1/128')];

/**
 * Addresses within private networks at which clouds keep what identifies a machine: Alibaba Cloud, AWS, Google Cloud and Oracle
 * Cloud. The link-local ones are in no private network.
 */
const metadataAddresses = ranges('100.100.100.200/32', 'fd00:ec2::/32', 'fd20:ce::/32', 'fd00:c1::/32');

/** @param address an IP literal */
export function isMetadata(address: string): boolean {
  return ipaddr.isValid(address) && inAny(ipaddr.process(address), metadataAddresses);
}

/** @param address an IP literal as the system prints it (no brackets) */
export function isPrivateNetwork(address: string): boolean {
  if (!ipaddr.isValid(address) || address.includes('%') || isMetadata(address)) return false;
  return inAny(ipaddr.process(address), privateNetworks);
}

export type AddressClass = 'public' | 'loopback' | 'forbidden';

/**
 * @param address an IP literal as the system prints it, without brackets
 * @returns `forbidden` also if the text is not an IP address
 */
export function classifyAddress(address: string): AddressClass {
  // A zone (fe80::1%eth0) exists only for link-local addresses.
  if (!ipaddr.isValid(address) || address.includes('%')) return 'forbidden';
  const parsed = ipaddr.parse(address);
  return parsed.kind() === 'ipv4' ? classifyIpv4(parsed) : classifyIpv6(parsed);
}

function classifyIpv4(address: Address): AddressClass {
  if (address.range() === 'loopback') return 'loopback';
  return inAny(address, ipv4Forbidden) ? 'forbidden' : 'public';
}

function classifyIpv6(address: Address): AddressClass {
  const bytes = address.toByteArray();
  const carried = ipaddr.fromByteArray(bytes.slice(12));
  if (inAny(address, ipv4Mapped)) return classifyIpv4(carried);
  if (inAny(address, nat64)) return classifyIpv4(carried) === 'public' ? 'public' : 'forbidden';
  if (address.range() === 'loopback') return 'loopback';
  if (!inAny(address, globalUnicast) || inAny(address, ipv6Forbidden)) return 'forbidden';
  // ISATAP (RFC 5214): the interface identifier is 00-00-5e-fe or 02-00-5e-fe followed by the IPv4 address.
  const isIsatap =
    (bytes[8] === 0 || bytes[8] === 2) && bytes[9] === 0 && bytes[10] === 0x5e && bytes[11] === 0xfe;
  return isIsatap && classifyIpv4(carried) !== 'public' ? 'forbidden' : 'public';
}

function inAny(address: Address, list: readonly Range[]): boolean {
  return list.some((range) => range[0].kind() === address.kind() && address.match(range));
}

/** Normalizes an address for comparison. An IPv4-mapped IPv6 address becomes the IPv4 address. */
export function canonicalAddress(address: string): string {
  return ipaddr.isValid(address) ? ipaddr.process(address).toNormalizedString() : address;
}
