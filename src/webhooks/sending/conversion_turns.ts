/**
 * Turns of requests whose response needs conversions. What a request holds while it waits for the one thread of all, such as the bodies of a page, it
 * reads only in its turn, and a turn is short.
 *
 *   pace of what is read → quick turn → read | postponed: an account is no longer proven → careful turn → read
 *
 * A quick turn converts for proven accounts only (converter.ts), so requests for these wait for no conversion of a suspect.
 */

import { currentUser, inTurnOf } from '../../database/connection_user.ts';
import { currentSignal } from '../../http/overload/connection_users.ts';
import { overloaded } from '../../http/overload/refusal.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { LimitedWork } from '../../shared/limited_work.ts';
import { undivided } from '../../shared/owner_turns.ts';
import type { ConversionResult } from './conversion_thread.ts';

/** Which line has the conversions of something that is read; `none` if it needs none. */
export type Pace = 'none' | 'quick' | 'careful';

/** How many requests have a turn of a pace at once on a node. */
const turnsMax = 2;
/** How many of one app of a user may wait. */
export const waitingMax = 10;
/** What the conversions of a turn may take, in milliseconds, and make, in bytes. The last one may exceed them. */
const turnMsMax = 100;
export const turnBytesMax = 262_144;

/** The conversions of one request, which is given no more of them when it has had enough. */
export class ConversionTurn {
  readonly isQuick: boolean;
  #ms = 0;
  #bytes = 0;

  constructor(pace: Exclude<Pace, 'none'>) {
    this.isQuick = pace === 'quick';
  }

  get isOver(): boolean {
    return this.#ms >= turnMsMax || this.#bytes >= turnBytesMax;
  }

  count(result: ConversionResult): void {
    this.#ms += result.ms;
    if ('body' in result) this.#bytes += result.body.length;
  }
}

export class ConversionTurns {
  readonly #work = { quick: new LimitedWork(turnsMax), careful: new LimitedWork(turnsMax) };

  /**
   * @param owner whose turn it is if no request is served
   * @param read what was asked for, in a turn of the pace that it needs. Returns the pace if it needs another one.
   * @param signal ends the wait, as the end of the client does
   * @throws Problem 503 if too many of the caller wait, NoTurnError if there was no turn in time
   */
  async run<Result extends object | undefined>(
    owner: string,
    read: (turn: ConversionTurn | null) => Promise<Result | Pace>,
    signal?: AbortSignal,
  ): Promise<Result> {
    let result = await read(null);
    while (typeof result === 'string')
      result = result === 'none' ? await read(null) : await this.#take(owner, result, read, signal);
    return result;
  }

  #take<Result>(
    owner: string,
    pace: Exclude<Pace, 'none'>,
    read: (turn: ConversionTurn) => Promise<Result>,
    signal: AbortSignal | undefined,
  ): Promise<Result> {
    const caller = currentUser() ?? undivided(owner);
    const work = this.#work[pace];
    if (work.isFull(caller, waitingMax)) throw overloaded();
    const readInTurn = () => read(new ConversionTurn(pace));
    const readNow = () => inTurnOf(`${pace} conversions`, work.waitingOwners, readInTurn);
    return waitElsewhere(() => work.run(caller, readNow, undefined, signal ?? currentSignal()));
  }
}
