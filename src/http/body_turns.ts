/**
 * Turns of parsing large bodies. To parse a megabyte of empty objects takes the server thread tens of milliseconds, and one caller can have
 * the last bytes of many bodies arrive at the same moment. So each turn of the event loop parses one large body, and then rests for as
 * long as that took: other requests need several turns of the event loop, which would have one body each.
 *
 * The next turn is of the caller that has had least of the time lately. With equal turns, a dozen callers with the longest bodies made each
 * body of all others wait for a dozen of theirs. What many callers wait for is the server's, and comes first.
 *
 *   arrived → waiting, by caller → its turn: parsed → rest → next
 */

import { LRUCache } from 'lru-cache';
import { asServer } from '../database/connection_user.ts';
import { upTo } from '../shared/entries.ts';
import { OwnerTurns } from '../shared/owner_turns.ts';

/** Bodies up to this are parsed at once. */
const smallBytes = 16_384;
/** Milliseconds of parsing that need no rest. */
const shortMs = 5;

/** After so many milliseconds, half of the time that a caller has had counts. The longer, the longer new callers go before a busy one. */
const halfMs = 10_000;
/** Maximum callers to remember. */
const callersMax = 10_000;

/** The owner of work of the server. */
export const serverWork = '';

const waiting = new OwnerTurns<() => void>();
/** The milliseconds that callers have had, and when they had the last of them. */
const had = new LRUCache<string, { ms: number; at: number }>(upTo(callersMax));
let isRunning = false;

/** Resolves when a body may be parsed. @param owner whose body it is, or `serverWork` */
export function takeBodyTurn(owner: string, bytes: number): Promise<void> | undefined {
  if (bytes <= smallBytes) return undefined;
  return new Promise((resolve) => {
    waiting.add(owner, resolve);
    if (isRunning) return;
    isRunning = true;
    asServer(() => setImmediate(run));
  });
}

function run(): void {
  const startedAt = performance.now();
  const owner = nextOwner(startedAt);
  waiting.takeOf(owner)?.();
  // The body is parsed before that.
  setImmediate(() => {
    const now = performance.now();
    const tookMs = now - startedAt;
    had.set(owner, { ms: hadMs(owner, now) + tookMs, at: now });
    isRunning = !waiting.isEmpty;
    if (!isRunning) return;
    if (tookMs > shortMs) setTimeout(run, tookMs);
    else setImmediate(run);
  });
}

/** How much time a caller has had lately. */
function hadMs(owner: string, now: number): number {
  const { ms, at } = had.get(owner) ?? { ms: 0, at: now };
  return ms * 0.5 ** ((now - at) / halfMs);
}

/** Of callers that have had equally much, the one whose turn is first. */
function nextOwner(now: number): string {
  let next = serverWork;
  let least = Number.POSITIVE_INFINITY;
  for (const owner of waiting.owners()) {
    if (owner === serverWork) return owner;
    const ms = hadMs(owner, now);
    if (ms < least) [next, least] = [owner, ms];
  }
  return next;
}
