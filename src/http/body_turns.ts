/**
 * Turns of parsing large bodies. To parse a megabyte of empty objects takes the server thread tens of milliseconds, and one caller can have
 * the last bytes of many bodies arrive at the same moment. So each turn of the event loop parses one large body, and then rests for as
 * long as that took: other requests need several turns of the event loop, which would have one body each.
 *
 * The next turn is of the caller that has used least of its share of the time. With equal turns, a dozen callers with the longest bodies made each
 * body of all others wait for a dozen of theirs. What many callers wait for is the server's, and comes first.
 *
 *   arrived → waiting, by caller → its turn: parsed → rest → next
 */

import { asServer } from '../database/connection_user.ts';
import { FairTime } from '../shared/fair_time.ts';
import { type GroupMember, OwnerTurns, undivided } from '../shared/owner_turns.ts';

/** Bodies up to this are parsed at once. */
const smallBytes = 16_384;
/** Milliseconds of parsing that need no rest. */
const shortMs = 5;

/** Work of the server. */
export const serverWork: GroupMember = undivided('');

interface Body {
  readonly caller: GroupMember;
  readonly begin: () => void;
}

const waiting = new OwnerTurns<Body>();
const times = new FairTime();
let isRunning = false;

/** Resolves when a body may be parsed. @param caller whose body it is, or `serverWork` */
export function takeBodyTurn({ owner, part, group }: GroupMember, bytes: number): Promise<void> | undefined {
  if (bytes <= smallBytes) return undefined;
  return new Promise((begin) => {
    // Whose a request is may become known while its body is parsed.
    waiting.add(owner, { caller: { owner, part, group }, begin }, part);
    if (isRunning) return;
    isRunning = true;
    asServer(() => setImmediate(run));
  });
}

function run(): void {
  const startedAt = performance.now();
  const caller = nextCaller();
  waiting.takeOf(caller.owner, caller.part)?.begin();
  // The body is parsed before that.
  setImmediate(() => {
    const tookMs = performance.now() - startedAt;
    times.add(caller, tookMs);
    isRunning = !waiting.isEmpty;
    if (!isRunning) return;
    if (tookMs > shortMs) setTimeout(run, tookMs);
    else setImmediate(run);
  });
}

function nextCaller(): GroupMember {
  const isOfServer = waiting.countOf(serverWork.owner) > 0;
  const callers = [...waiting.firsts()].map(([, { caller }]) => caller);
  return (isOfServer ? undefined : times.nextOf(callers)) ?? serverWork;
}
