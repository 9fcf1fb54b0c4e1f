/**
 * Turns of expensive lists. For a list that no index has in its order (`isIndexed`), PostgreSQL looks for resources among all that the owner has,
 * of which there may be any number. A few users with such lists would keep its processors and the connections from everybody else, so few are
 * read at once. Next is the user that has used least of its share of the time. Pages of the delivery log, large deletions and tools of agents take such turns, too.
 */

import { inTurnOf } from '../database/connection_user.ts';
import type { Principal } from '../grants/principal.ts';
import { callerOfToken } from '../http/overload/caller.ts';
import { overloaded } from '../http/overload/refusal.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';
import { LimitedWork } from '../shared/limited_work.ts';

/** How many lists of all collections are read at once on a node. */
const readAtOnce = 2;
/** How many of one app of a user may wait. */
export const waitingMax = 10;

export class ListTurns {
  readonly #kind: string;
  readonly #work: LimitedWork;

  /** @param kind what they are turns of @param max how many are read at once */
  constructor(kind: string, max = readAtOnce) {
    this.#kind = kind;
    this.#work = new LimitedWork(max);
  }

  /**
   * @param signal ends the wait
   * @throws Problem 503 if too many of the user wait, NoTurnError if there was no turn in time, or before the signal
   */
  async run<Page>(principal: Principal, read: () => Promise<Page>, signal?: AbortSignal): Promise<Page> {
    const caller = callerOfToken(principal);
    if (this.#work.isFull(caller, waitingMax)) throw overloaded();
    const readNow = () => inTurnOf(this.#kind, this.#work.waitingOwners, read);
    return waitElsewhere(() => this.#work.run(caller, readNow, undefined, signal));
  }
}
