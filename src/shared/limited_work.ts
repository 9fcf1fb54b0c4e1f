/**
 * Work of which a few pieces run at once, because each is expensive. Next is the owner whose share of the time is least used (fair_time.ts). Where pieces can
 * hang, owners have shares and take turns (owner_turns.ts).
 */

import { FairTime } from './fair_time.ts';
import { type GroupMember, OwnerTurns, type Sharer, undivided } from './owner_turns.ts';
import { isFree, wholeOf } from './share.ts';

/**
 * How long a piece may wait for its turn, in milliseconds. Whatever it does then takes 30 seconds at most, and proxies give a response 75: nginx takes
 * a later one for a failure of the node, and sends nobody there for ten seconds.
 */
export const turnWaitMsMax = 30_000;

/** There was no turn in time, or before the signal. Nothing was done. */
export class NoTurnError extends Error {
  override readonly name = 'NoTurnError';

  constructor() {
    super('other work of this kind takes too long');
  }
}

/** A piece of work that waits for the turn of its owner, or of another one that waits for its result. */
interface Piece {
  readonly begin: (owner: string) => void;
  readonly sharer: GroupMember;
  readonly owners: Set<string>;
  /** It has begun, or waited for too long. */
  isOver: boolean;
}

export class LimitedWork {
  readonly #max: number;
  #running = 0;
  /** The owner of each running piece, if owners have shares. */
  readonly #owners: string[] = [];
  readonly #waiting = new OwnerTurns<Piece>();
  readonly #byKey = new Map<string, Piece>();
  /** Undefined if owners have shares. */
  readonly #times: FairTime | undefined;

  /**
   * @param max how many pieces run at once
   * @param hasShares whether owners have shares of these (share.ts), because pieces can hang: turns alone do not help those who wait
   */
  constructor(max: number, hasShares = false) {
    this.#max = max;
    this.#times = hasShares ? undefined : new FairTime();
  }

  /** Whether as many run as may. */
  get isBusy(): boolean {
    return this.#running >= this.#max;
  }

  /** Whether the owner could begin if fewer pieces of others ran. @param fewer by how many */
  couldBegin(owner: string, fewer: number): boolean {
    return isFree(this.#max, this.#running - fewer, this.#countOf(owner));
  }

  get isIdle(): boolean {
    return this.#running === 0;
  }

  /** Who waits for a turn. */
  readonly waitingOwners = (): GroupMember[] => [...this.#waiting.firsts()].map(([, { sharer }]) => sharer);

  /** How many pieces of the owner wait for their turn. */
  waitingOf(owner: string): number {
    return this.#waiting.countOf(owner);
  }

  /** Whether as many pieces wait as the sharer may have. @param max of an owner that has one part or none. Several share twice as many, and some */
  isFull(sharer: Sharer, max: number): boolean {
    const ofOwner = this.waitingOf(sharer.owner);
    if (sharer.part === null) return ofOwner >= max;
    return !isFree(wholeOf(max), ofOwner, this.#waiting.countOfPart(sharer));
  }

  /**
   * Runs the work when it is its turn.
   * @param sharer whose work it is: the owner alone, if it has no parts. Parts take turns within their owner
   * @param key of work whose result others may wait for (`join`)
   * @param signal ends the wait
   * @returns its result
   * @throws NoTurnError, or what the work throws
   */
  async run<Result>(
    sharer: GroupMember | string,
    work: () => Promise<Result>,
    key?: string,
    signal?: AbortSignal,
  ): Promise<Result> {
    if (signal?.aborted) throw new NoTurnError();
    const { owner, part, group } = typeof sharer === 'string' ? undivided(sharer) : sharer;
    const member = { owner, part, group };
    let beginner = owner;
    if (this.#mayBegin(owner)) this.#beginAtOnce(member);
    else beginner = await this.#wait(member, key, signal);
    const begunAt = performance.now();
    try {
      return await work();
    } finally {
      this.#running -= 1;
      if (this.#times === undefined) this.#owners.splice(this.#owners.indexOf(beginner), 1);
      else this.#times.add(member, performance.now() - begunAt);
      this.#beginNext();
    }
  }

  /** The owner waits for the result of work that waits for its turn: the work begins with the first turn of any of those. */
  join(owner: string, key: string): void {
    const piece = this.#byKey.get(key);
    if (piece === undefined || piece.owners.has(owner)) return;
    if (this.#mayBegin(owner)) this.#beginPiece(owner, piece);
    else this.#add(owner, piece);
  }

  /** @returns the owner whose turn it is */
  #wait(sharer: GroupMember, key: string | undefined, signal: AbortSignal | undefined): Promise<string> {
    return new Promise((resolve, reject) => {
      const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', giveUp);
        piece.isOver = true;
        if (key !== undefined && this.#byKey.get(key) === piece) this.#byKey.delete(key);
      };
      const begin = (beginner: string) => {
        end();
        resolve(beginner);
      };
      const giveUp = () => {
        end();
        for (const each of piece.owners) this.#waiting.remove(each, piece);
        reject(new NoTurnError());
      };
      const timer = setTimeout(giveUp, turnWaitMsMax);
      signal?.addEventListener('abort', giveUp);
      const piece: Piece = { begin, sharer, owners: new Set(), isOver: false };
      if (key !== undefined) this.#byKey.set(key, piece);
      this.#add(sharer.owner, piece, sharer.part);
    });
  }

  #add(owner: string, piece: Piece, part: string | null = null): void {
    piece.owners.add(owner);
    this.#waiting.add(owner, piece, part);
  }

  #beginPiece(owner: string, piece: Piece): void {
    this.#begin(owner);
    piece.begin(owner);
  }

  #mayBegin(owner: string): boolean {
    if (this.#running >= this.#max) return false;
    if (this.#times !== undefined) return true;
    return isFree(this.#max, this.#running, this.#countOf(owner));
  }

  #countOf(owner: string): number {
    return this.#owners.reduce((count, each) => (each === owner ? count + 1 : count), 0);
  }

  #beginAtOnce(member: GroupMember): void {
    this.#begin(member.owner);
    this.#times?.begin(member);
  }

  #begin(owner: string): void {
    this.#running += 1;
    if (this.#times === undefined) this.#owners.push(owner);
  }

  #beginNext(): void {
    if (this.#times === undefined) this.#beginByShares();
    else this.#beginByTime(this.#times);
  }

  /** One end may let several begin. */
  #beginByShares(): void {
    for (const owner of this.#waiting.owners()) {
      if (this.#running >= this.#max) return;
      if (!this.#mayBegin(owner)) continue;
      const piece = this.#waiting.takeOf(owner);
      if (piece?.isOver === false) this.#beginPiece(owner, piece);
    }
  }

  #beginByTime(times: FairTime): void {
    while (this.#running < this.#max) {
      const next = times.nextOf(this.waitingOwners());
      if (next === undefined) return;
      const piece = this.#waiting.takeOf(next.owner, next.part);
      if (piece?.isOver === false) this.#beginPiece(next.owner, piece);
    }
  }
}
