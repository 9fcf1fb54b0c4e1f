/**
 * Lists that no index has in their order (`isIndexed`). PostgreSQL looks for their resources among all that the owner has, of which there may be
 * any number. A few users with such lists would keep its processors and the connections from everybody else, so few are read at
 * once. Next is the user that has had least time lately.
 */

import type { Principal } from '../grants/principal.ts';
import { overloaded } from '../http/overload/refusal.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';
import { LimitedWork } from '../shared/limited_work.ts';

/** How many are read at once on a node, of all collections. */
const readAtOnce = 2;
/** How many of one user may wait. */
export const waitingMax = 10;

export class ListTurns {
  readonly #work = new LimitedWork(readAtOnce);

  /** @throws Problem 503 if too many of the user wait, NoTurnError if there was no turn in time */
  async run<Page>({ accountId, clientId }: Principal, read: () => Promise<Page>): Promise<Page> {
    const owner = accountId ?? clientId;
    if (this.#work.waitingOf(owner) >= waitingMax) throw overloaded();
    return waitElsewhere(() => this.#work.run(owner, read));
  }
}
