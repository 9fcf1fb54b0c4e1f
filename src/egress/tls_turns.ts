/**
 * Turns of a thread's work on what hosts send over TLS. A host's certificates take OpenSSL up to 15 ms, a record full of small messages
 * some 8 ms, and hundreds of hosts can send at the same moment. So each turn of the event loop verifies for one host, and reads records for
 * a few milliseconds; what takes more waits for a later one. Addresses take turns; of IPv6, the /48 that a site has.
 *
 *   handshakes: waiting, by address → its turn → verified
 *   records: read at once, or, if this turn of the event loop has no time left: waiting, by address, few bytes first → its turn → read
 */

import { OwnerTurns } from '../shared/owner_turns.ts';
import { addressKey } from './address_key.ts';

type Work = () => void;

/** Milliseconds of a turn of the event loop for records. Work that has begun ends later. */
const turnMs = 5;
/** Records of most responses. */
const fewBytes = 1_024;

const handshakes = new OwnerTurns<Work>();
const fewRecords = new OwnerTurns<Work>();
const manyRecords = new OwnerTurns<Work>();
let isPlanned = false;
/** What this turn of the event loop has spent on records. */
let spentMs = 0;

/** @param address in the form of `canonicalAddress` @param verify called later, once */
export function takeHandshakeTurn(address: string, port: number, verify: Work): void {
  handshakes.add(ownerOf(address, port), verify);
  plan();
}

/** @param bytes that are read @param read called once, at once or later @returns whether it was called */
export function takeRecordTurn(address: string, port: number, bytes: number, read: Work): boolean {
  const isNow = spentMs < turnMs;
  if (isNow) readRecords(read);
  else (bytes <= fewBytes ? fewRecords : manyRecords).add(ownerOf(address, port), read);
  plan();
  return isNow;
}

const ownerOf = (address: string, port: number) =>
  addressKey(address, String(port)).split(':').slice(0, 3).join(':');

function readRecords(read: Work): void {
  const startedAt = performance.now();
  try {
    read();
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
      handshakes.take()?.();
      while (!fewRecords.isEmpty && spentMs < turnMs) readRecords(fewRecords.take() as Work);
      // At least one.
      if (!manyRecords.isEmpty) readRecords(manyRecords.take() as Work);
      while (!manyRecords.isEmpty && spentMs < turnMs) readRecords(manyRecords.take() as Work);
    } finally {
      const isWaiting = !handshakes.isEmpty || !fewRecords.isEmpty || !manyRecords.isEmpty;
      if (isWaiting || spentMs > 0) plan();
    }
  });
}
