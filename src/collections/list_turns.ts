/**
 * Lists that no index has in their order (`isIndexed`). PostgreSQL looks for their resources among all that the owner has, of which there may be
 * any number. A few users with such lists would keep its processors and the connections from everybody else, so few are read at
 * once. Next is the user that has had least time lately.
 */

import type { Principal } from '../grants/principal.ts';
import { callerOfToken } from '../http/overload/caller.ts';
import { overloaded } from '../http/overload/refusal.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';
import { LimitedWork } from '../shared/limited_work.ts';

/** How many are read at once on a node, of all collections. */
const readAtOnce = 2;
/** How many of one app of a user may wait. */
export const waitingMax = 10;

export class ListTurns {
  readonly #work = new LimitedWork(readAtOnce);

  /** @throws Problem 503 if too many of the user wait, NoTurnError if there was no turn in time */
  async run<Page>(principal: Principal, read: () => Promise<Page>): Promise<Page> {
    const caller = callerOfToken(principal);
    if (this.#work.isFull(caller, waitingMax)) throw overloaded();
    return waitElsewhere(() => this.#work.run(caller, read));
  }
}
