/**
 * Turns of requests to other servers: each origin works at some of them at once, of which whoever causes them has a share. So what one
 * of them makes slow, such as paths of a server that it knows to hang, does not hold up what others need from that server.
 */

import { LimitedWork } from '../shared/limited_work.ts';

/** Too many requests of one owner wait. */
export class TooManyWaitError extends Error {
  override readonly name = 'TooManyWaitError';

  constructor() {
    super('too many requests of one network or account wait for this server');
  }
}

export class OriginTurns {
  readonly #max: number;
  readonly #waitingMax: number;
  readonly #origins = new Map<string, LimitedWork>();

  /** @param max requests to one origin at once @param waitingMax how many of one owner may wait */
  constructor(max: number, waitingMax = Number.POSITIVE_INFINITY) {
    this.#max = max;
    this.#waitingMax = waitingMax;
  }

  /**
   * Runs a request when it is the owner's turn.
   * @param url of any path of the server
   * @param signal ends the wait
   * @throws TooManyWaitError, NoTurnError, or what the request throws
   */
  async run<Result>(
    url: string | URL,
    owner: string,
    request: () => Promise<Result>,
    signal?: AbortSignal,
  ): Promise<Result> {
    const { origin } = new URL(url);
    const turns = this.#origins.get(origin) ?? new LimitedWork(this.#max, true);
    if (turns.waitingOf(owner) >= this.#waitingMax) throw new TooManyWaitError();
    this.#origins.set(origin, turns);
    try {
      return await turns.run(owner, request, undefined, signal);
    } finally {
      // Strangers choose origins.
      if (turns.isIdle && this.#origins.get(origin) === turns) this.#origins.delete(origin);
    }
  }
}
