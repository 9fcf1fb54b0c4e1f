/**
 * Resolves a host name to the addresses that may be connected to. All addresses that could be used are checked; if one of them is
 * forbidden, none is used.
 *
 * It does not use `getaddrinfo`, which blocks one of a few threads, so that a few names with unresponsive servers would
 * delay all others, nor Node's resolver, which a name with thousands of addresses would keep busy (dns/client.ts).
 */

import { isIP } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { LRUCache } from 'lru-cache';
import { LimitedWork, NoTurnError } from '../shared/limited_work.ts';
import { canonicalAddress, classifyAddress, isPrivateNetwork } from './address.ts';
import { allowListOf } from './allow_list.ts';
import { DnsClient } from './dns/client.ts';
import { lookupTimeoutMs } from './dns/lookup.ts';
import { addressesMax } from './dns/message.ts';
import { EgressError } from './error.ts';

/** Milliseconds that are left to find addresses of one family once those of the other are known (RFC 8305 section 3). Some name servers never answer one of the questions. */
const otherFamilyMs = 500;

/**
 * Maximum names that are looked up at once, of which tenants have shares. Many name servers work at few questions at once (dnsmasq at 150), and those for names of a
 * tenant can stay without an answer.
 */
const namesMax = 48;
/** Milliseconds for which a name without an answer counts. Name servers work at its questions longer than they are waited for. */
const unansweredMs = 10_000;
/** Milliseconds after which a name counts as slow, and for which its tenant then takes the turns of those that had one. */
const slowMs = 1_500;
const carefulMs = 120_000;
/** Milliseconds for which the IPv4 addresses of a name are known whose question for IPv6 had no answer. */
const halfKeptMs = 15_000;
/** How exact timers are, in milliseconds. */
const timerGrainMs = 50;
/** Milliseconds for which addresses are known, and of how many names. Hosts that close each connection would otherwise be asked for with each delivery. */
const keptMs = 5_000;
const keptMax = 10_000;
/** Milliseconds for which a name waits for its turn. */
export const nameWaitMsMax = 5_000;

/** Who wants the addresses of a name. */
export interface NameUser {
  /** Null for the server itself, or for nobody with a name: their names take no turns. */
  tenant: string | null;
  /** Called when the turn has come, at once if there is none to wait for. @param waitedMs milliseconds until then */
  onTurn?: (waitedMs: number) => void;
}

const nobody: NameUser = { tenant: null };

/** Returns all addresses of a name. @throws Error if the name cannot be resolved, NoTurnError if its turn did not come */
export type ResolveHost = (hostname: string, user: NameUser) => Promise<string[]>;

export interface EgressPolicy {
  /** Development only: allows loopback addresses. */
  allowLoopback: boolean;
  /** A host that the operator named: it may also be in a private network or on this machine. */
  trustedHost?: string;
  /** Private receivers that the operator listed (allow_list.ts). */
  allow?: readonly string[];
  /** Replaces the system's name servers. */
  resolveHost?: ResolveHost;
}

/**
 * Resolves a host and checks its addresses.
 * @param hostname a name or an IP literal without brackets
 * @param isPlain whether the connection has no TLS
 * @throws EgressError `dns_error` or `address_refused`, NoTurnError if the turn of the name did not come in time
 */
export async function resolveVetted(
  hostname: string,
  policy: EgressPolicy,
  isPlain = false,
  user: NameUser = nobody,
): Promise<string[]> {
  if (isPlain && !mayBePlain(hostname, policy)) throw new EgressError('address_refused');
  let hasTurn = false;
  const onTurn = (waitedMs: number) => {
    hasTurn = true;
    user.onTurn?.(waitedMs);
  };
  // Literals are not resolved, but must be checked too.
  const addresses =
    isIP(hostname) > 0 ? [hostname] : await resolveName(hostname, policy, { ...user, onTurn });
  if (!hasTurn) onTurn(0);
  for (const address of addresses) {
    if (!mayConnect(address, policy, hostname)) throw new EgressError('address_refused');
  }
  return addresses.map(canonicalAddress);
}

/** Whether an address may be connected to. @param hostname what it is an address of */
export function mayConnect(address: string, policy: EgressPolicy, hostname?: string): boolean {
  const addressClass = classifyAddress(address);
  const isTrusted = policy.trustedHost !== undefined && hostname === policy.trustedHost;
  if (addressClass === 'loopback' && (policy.allowLoopback || isTrusted)) return true;
  if (policy.allow !== undefined && allowListOf(policy.allow).mayReach(address, hostname ?? address))
    return true;
  return addressClass === 'public' || (isTrusted && isPrivateNetwork(address));
}

/** A deployment that is not in development sends without TLS only to hosts of the list, which may have become shorter. */
function mayBePlain(hostname: string, { allowLoopback, allow }: EgressPolicy): boolean {
  return allowLoopback || allow === undefined || allowListOf(allow).hasHost(hostname);
}

async function resolveName(
  hostname: string,
  { resolveHost }: EgressPolicy,
  user: NameUser,
): Promise<string[]> {
  try {
    const addresses = await (resolveHost === undefined
      ? resolveBySystem(hostname, user)
      : within(lookupTimeoutMs, resolveHost(hostname, user)));
    if (addresses.length === 0) throw new EgressError('dns_error');
    return few(addresses);
  } catch (error) {
    if (error instanceof EgressError || error instanceof NoTurnError) throw error;
    throw new EgressError('dns_error', { cause: error });
  }
}

async function within<Result>(ms: number, work: Promise<Result>): Promise<Result> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new EgressError('dns_error')), ms);
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** The first addresses of each family. A name may have thousands, and each takes some 30 µs to check and an attempt to connect. */
function few(addresses: readonly string[]): string[] {
  const counts = { 0: 0, 4: 0, 6: 0 };
  return addresses.filter((address) => {
    const family = isIP(address) as keyof typeof counts;
    counts[family] += 1;
    return counts[family] <= addressesMax;
  });
}

interface NameLookup {
  hasBegun: boolean;
  begun: Promise<void>;
  answer: Promise<string[]>;
}

/** Lookups of some of the tenants. */
class NameTurns {
  readonly turns = new LimitedWork(namesMax / 2, true);
  readonly lookups = new Map<string, NameLookup>();
}

/** Resolves names by asking name servers, in turns. Who wants a name that is being looked up, or was a little ago, gets the same answer. */
export function resolveWith(dns: DnsClient): ResolveHost {
  const usual = new NameTurns();
  /** Of tenants that had a slow name lately: however many they are, the others have turns of their own. */
  const careful = new NameTurns();
  const slow = new LRUCache<string, true>({ max: keptMax, ttl: carefulMs });
  const kept = new LRUCache<string, string[]>({ max: keptMax, ttl: keptMs });
  const keep = (name: string, addresses: string[], ms = keptMs) => {
    if (addresses.length > 0) kept.set(name, addresses, { ttl: ms });
  };
  const lookUp = async (
    name: string,
    tenant: string,
    { resolve, reject }: PromiseWithResolvers<string[]>,
  ): Promise<void> => {
    const from = performance.now();
    const { found, all } = lookUpBoth(dns, name, tenant);
    found.then((addresses) => {
      keep(name, addresses);
      resolve(addresses);
    }, reject);
    // An answer may be enough for whoever asks, while the name server works at the other question.
    const { addresses, isAnswered } = await all;
    const ms = performance.now() - from;
    // While the name server itself is slow, this is everybody. Nothing tells that from names that take all turns.
    if (ms >= slowMs) slow.set(tenant, true);
    const isLate = !isAnswered && ms >= lookupTimeoutMs - timerGrainMs;
    const isHalf = isLate && addresses.some((address) => isIP(address) === 4);
    keep(name, addresses, isHalf ? halfKeptMs : keptMs);
    if (isLate) await sleep(unansweredMs - ms, undefined, { ref: false });
  };
  const start = ({ turns, lookups }: NameTurns, name: string, tenant: string): NameLookup => {
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    const answering = Promise.withResolvers<string[]>();
    const lookup: NameLookup = {
      hasBegun: false,
      begun,
      answer: answering.promise.finally(() => lookups.delete(name)),
    };
    const work = () => {
      lookup.hasBegun = true;
      begin();
      return lookUp(name, tenant, answering);
    };
    turns.run(tenant, work, name, AbortSignal.timeout(nameWaitMsMax)).catch(answering.reject);
    return lookup;
  };
  /** The lookup of a name by tenants of the same kind, or another one that needs no turn any more. */
  const findOrStart = (name: string, tenant: string): NameLookup => {
    const [own, other] = slow.has(tenant) ? [careful, usual] : [usual, careful];
    const known = own.lookups.get(name);
    if (known !== undefined) {
      own.turns.join(tenant, name);
      return known;
    }
    const begun = other.lookups.get(name);
    if (begun?.hasBegun === true) return begun;
    const lookup = start(own, name, tenant);
    own.lookups.set(name, lookup);
    return lookup;
  };
  return async (hostname, { tenant, onTurn = () => {} }) => {
    const name = hostname.replace(/\.$/, '');
    // RFC 6761 section 6.3: name servers must not be queried for localhost. The caller checks whether loopback is allowed.
    const isLocal = name === 'localhost' || name.endsWith('.localhost');
    const known = isLocal ? ['127.0.0.1', '::1'] : kept.get(name);
    if (known !== undefined || tenant === null) {
      onTurn(0);
      return known ?? lookUpBoth(dns, name, '').found;
    }
    const from = performance.now();
    const lookup = findOrStart(name, tenant);
    void lookup.begun.then(() => onTurn(performance.now() - from));
    return lookup.answer;
  };
}

/** What both questions found in the end. */
interface BothFamilies {
  addresses: string[];
  isAnswered: boolean;
}

/** @returns `found`: the addresses as soon as they can be used, perhaps of one family */
function lookUpBoth(
  dns: DnsClient,
  name: string,
  tenant: string,
): { found: Promise<string[]>; all: Promise<BothFamilies> } {
  const found: { 4: string[]; 6: string[] } = { 4: [], 6: [] };
  const { promise: late, resolve: end } = Promise.withResolvers<void>();
  let timer: NodeJS.Timeout | undefined;
  const lookUp = async (family: 4 | 6) => {
    found[family] = await dns.lookUp(name, family, tenant);
    if (found[family].length > 0) timer ??= setTimeout(end, otherFamilyMs);
  };
  const both = Promise.allSettled([lookUp(4), lookUp(6)]);
  const addressesNow = () => [...found[4], ...found[6]];
  const first = Promise.race([both, late]).then((results) => {
    clearTimeout(timer);
    const addresses = addressesNow();
    const [ipv4] = results ?? [];
    if (addresses.length === 0 && ipv4?.status === 'rejected') throw ipv4.reason;
    return addresses;
  });
  const all = both.then((results) => ({
    addresses: addressesNow(),
    isAnswered: results.every(({ status }) => status === 'fulfilled'),
  }));
  return { found: first, all };
}

const resolveBySystem = resolveWith(new DnsClient());
