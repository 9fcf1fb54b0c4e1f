/**
 * Turns of requests that continue with a cursor of another lane. Finding the place takes as long as that lane has deliveries, and an agent can
 * repeat the cursor at will.
 */

import { inTurnOf } from '../../database/connection_user.ts';
import { callerOfToken } from '../../http/overload/caller.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { LimitedWork, NoTurnError } from '../../shared/limited_work.ts';
import type { EventErrors } from './errors.ts';

/** Places that are looked for at once. */
const resumedMax = 2;
/** Requests of an app that may wait in one account. */
const waitingMax = 4;
const retryAfterMs = 5_000;

export class ResumeTurns {
  readonly #errors: EventErrors;
  readonly #work = new LimitedWork(resumedMax);

  constructor(errors: EventErrors) {
    this.#errors = errors;
  }

  /** Call it outside a transaction: it waits without a place. @throws RpcError ResourceExhausted */
  async run<Result>(
    of: { accountId: string; clientId: string },
    work: () => Promise<Result>,
  ): Promise<Result> {
    const caller = callerOfToken({ ...of, creatorId: null });
    if (this.#work.isFull(caller, waitingMax)) throw this.busy();
    const workNow = () => inTurnOf('places in lanes', this.#work.waitingOwners, work);
    return waitElsewhere(() => this.#work.run(caller, workNow)).catch((error: unknown) => {
      throw error instanceof NoTurnError ? this.busy() : error;
    });
  }

  busy() {
    return this.#errors.create('ResourceExhausted', { limit: 'replays', retryAfterMs });
  }
}
