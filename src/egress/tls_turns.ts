/**
 * Turns of a thread's work on TLS connections to hosts. A host's certificates take OpenSSL up to 15 ms, a record full of small messages
 * some 8 ms, the keys of a new connection up to one, and hundreds of hosts can accept or send at the same moment. So each turn of the event
 * loop verifies for one host, and begins connections and reads records for a few milliseconds; what takes more waits for a later one. Tenants take turns, and a tenant's addresses; of IPv6, the /48 that a site has.
 * Addresses alone would not do: tenants may have hosts at one, such as that of a content delivery network, and names may lead to any number of
 * addresses of others.
 *
 *   beginning:  at once, or, if this turn of the event loop has no time left: waiting, by tenant and address → its turn → begun
 *   handshakes: waiting, by tenant and address → its turn → verified
 *   records: read at once, or, if this turn of the event loop has no time left: waiting, by tenant and address, few bytes first → its turn → read
 */

import { OwnerTurns } from '../shared/owner_turns.ts';
import { addressKey } from './address_key.ts';

type Work = () => void;
/** @returns false if there was nothing to verify: nobody wants the connection any more */
type Verify = () => boolean;

/** Milliseconds of a turn of the event loop for beginnings and records. Work that has begun ends later. */
const turnMs = 5;
/** Records of most responses. */
const fewBytes = 1_024;

/** Handshakes that are given up in a turn of the event loop, beside one that is verified. */
const givenUpMax = 50;

const handshakes = new OwnerTurns<Verify>();
const beginnings = new OwnerTurns<Work>();
const fewRecords = new OwnerTurns<Work>();
const manyRecords = new OwnerTurns<Work>();
let isPlanned = false;
/** What this turn of the event loop has spent on beginnings and records. */
let spentMs = 0;

/** The peer of a connection. */
export interface PeerOfTenant {
  /** In the form of `canonicalAddress`. */
  readonly address: string;
  readonly port: number;
  readonly user: ConnectionUser;
}

/** For whom a connection is used now. */
export interface ConnectionUser {
  /** Null for the server itself, or for somebody without a name. */
  tenant: string | null;
}

/** @param verify called later, once */
export function takeHandshakeTurn(peer: PeerOfTenant, verify: Verify): void {
  handshakes.add(tenantOf(peer), verify, placeOf(peer));
  plan();
}

/** @param begin called once, at once or later */
export function takeBeginningTurn(peer: PeerOfTenant, begin: Work): void {
  if (spentMs < turnMs) spend(begin);
  else beginnings.add(tenantOf(peer), begin, placeOf(peer));
  plan();
}

/** @param bytes that are read @param read called once, at once or later @returns whether it was called */
export function takeRecordTurn(peer: PeerOfTenant, bytes: number, read: Work): boolean {
  const isNow = spentMs < turnMs;
  if (isNow) spend(read);
  else (bytes <= fewBytes ? fewRecords : manyRecords).add(tenantOf(peer), read, placeOf(peer));
  plan();
  return isNow;
}

const tenantOf = ({ user }: PeerOfTenant) => user.tenant ?? '';
const placeOf = ({ address, port }: PeerOfTenant) =>
  addressKey(address, String(port)).split(':').slice(0, 3).join(':');

function spend(work: Work): void {
  const startedAt = performance.now();
  try {
    work();
  } finally {
    spentMs += performance.now() - startedAt;
  }
}

function plan(): void {
  if (isPlanned) return;
  isPlanned = true;
  setImmediate(() => {
    isPlanned = false;
    spentMs = 0;
    try {
      let givenUp = 0;
      while (givenUp < givenUpMax && handshakes.take()?.() === false) givenUp += 1;
      while (!fewRecords.isEmpty && spentMs < turnMs) spend(fewRecords.take() as Work);
      for (const turns of [beginnings, manyRecords]) {
        // At least one.
        if (!turns.isEmpty) spend(turns.take() as Work);
        while (!turns.isEmpty && spentMs < turnMs) spend(turns.take() as Work);
      }
    } finally {
      const isWaiting = [handshakes, beginnings, fewRecords, manyRecords].some(({ isEmpty }) => !isEmpty);
      if (isWaiting || spentMs > 0) plan();
    }
  });
}
