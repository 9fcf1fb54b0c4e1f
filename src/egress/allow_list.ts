/**
 * The operator's list of private receivers: hosts and networks that connections may also reach inside the operator's own
 * network, and without TLS. Everything else stays public and `https`.
 *
 *   `hooks.internal.example`    this host: its addresses may be in private networks
 *   `*.svc.cluster.local`       every host below this domain
 *   `10.20.0.0/16`, `10.0.0.7`  these addresses, whichever host has them
 *
 * Loopback addresses must be listed themselves, as a range or as `localhost`. Link-local addresses and the addresses at which clouds
 * keep a machine's credentials are never reached, whatever the list says.
 */

import ipaddr from 'ipaddr.js';
import { classifyAddress, isMetadata, isPrivateNetwork, privateOrLoopback } from './address.ts';

type Range = ReturnType<typeof ipaddr.parseCIDR>;

interface Rules {
  hosts: ReadonlySet<string>;
  /** Each with its dot: `.svc.cluster.local`. */
  domains: readonly string[];
  ranges: readonly Range[];
}

const entriesMax = 1_000;

export class AllowList {
  readonly #rules: Rules;

  /** @param entries without errors (`allowListErrors`) */
  constructor(entries: readonly string[]) {
    const texts = entries.map((entry) => entry.toLowerCase());
    const ranges = texts.map(readRange).filter((range) => range !== undefined);
    const names = texts.filter((text) => readRange(text) === undefined);
    this.#rules = {
      hosts: new Set(names.filter((name) => !name.startsWith('*.')).map(withoutDot)),
      domains: names.filter((name) => name.startsWith('*.')).map((name) => withoutDot(name.slice(1))),
      ranges,
    };
  }

  /** Whether there are networks, in which any host may be. */
  get hasNetworks(): boolean {
    return this.#rules.ranges.length > 0;
  }

  /** Whether the operator listed this host. @param hostname as `URL` normalizes it, or an address without brackets */
  hasHost(hostname: string): boolean {
    if (ipaddr.isValid(hostname)) return this.hasAddress(hostname);
    const host = withoutDot(hostname.toLowerCase());
    const { hosts, domains } = this.#rules;
    return hosts.has(host) || domains.some((domain) => host.endsWith(domain) && host.length > domain.length);
  }

  /** Whether a listed range has this address. */
  hasAddress(address: string): boolean {
    if (!ipaddr.isValid(address) || address.includes('%') || isMetadata(address)) return false;
    const parsed = ipaddr.process(address);
    return this.#rules.ranges.some((range) => range[0].kind() === parsed.kind() && parsed.match(range));
  }

  /** Whether a connection to this address of this host is allowed although the address is not public. */
  mayReach(address: string, hostname: string): boolean {
    if (this.hasAddress(address)) return true;
    if (!this.hasHost(hostname)) return false;
    if (classifyAddress(address) === 'loopback') return isLocalhost(hostname);
    return isPrivateNetwork(address);
  }
}

const isLocalhost = (hostname: string) => /^(?:.+\.)?localhost\.?$/.test(hostname);

const lists = new WeakMap<readonly string[], AllowList>();

/** @returns the list of these entries, made once */
export function allowListOf(entries: readonly string[]): AllowList {
  let list = lists.get(entries);
  if (list === undefined) {
    list = new AllowList(entries);
    lists.set(entries, list);
  }
  return list;
}

const hostPattern =
  /^(?:\*\.)?[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\.?$/;

/** @returns what is wrong with a list that the operator wrote, each with its place in it */
export function allowListErrors(entries: unknown): { index: number | null; reason: string }[] {
  if (!Array.isArray(entries) || entries.length > entriesMax) {
    return [{ index: null, reason: `must be an array of at most ${entriesMax} hosts and CIDR ranges` }];
  }
  return entries.flatMap((entry: unknown, index) => {
    const reason = entryError(entry);
    return reason === undefined ? [] : [{ index, reason }];
  });
}

function entryError(entry: unknown): string | undefined {
  if (typeof entry !== 'string') return 'must be a host or a CIDR range';
  const text = entry.toLowerCase();
  const range = readRange(text);
  if (range !== undefined) {
    const [address, bits] = range;
    if (isMetadata(address.toString()) || address.range() === 'linkLocal') {
      return 'is link-local or has a cloud’s metadata service, which are never reached';
    }
    const isInside = privateOrLoopback.some(
      ([first, size]) => first.kind() === address.kind() && size <= bits && address.match(first, size),
    );
    return isInside ? undefined : 'is not inside a private or loopback network';
  }
  if (/^[\d.]+(?:\/.*)?$|[:/[\]]/.test(text))
    return 'is no host or CIDR range: leave out the scheme, the port and the path';
  if (text.length <= 253 && hostPattern.test(text)) return undefined;
  return 'must be a host, *. and a domain, or a CIDR range; write international names in Punycode';
}

/** @returns undefined if the text is no address or CIDR range */
function readRange(text: string): Range | undefined {
  if (text.includes('%')) return undefined;
  if (ipaddr.IPv4.isValidFourPartDecimal(text) || ipaddr.IPv6.isValid(text)) {
    const address = ipaddr.process(text);
    return [address, address.kind() === 'ipv4' ? 32 : 128];
  }
  const [first = '', bits = '', ...rest] = text.split('/');
  if (rest.length > 0 || !/^\d{1,3}$/.test(bits)) return undefined;
  if (!ipaddr.IPv4.isValidFourPartDecimal(first) && !ipaddr.IPv6.isValid(first)) return undefined;
  const address = ipaddr.parse(first);
  return Number(bits) <= (address.kind() === 'ipv4' ? 32 : 128) ? [address, Number(bits)] : undefined;
}

const withoutDot = (host: string) => host.replace(/\.$/, '');
