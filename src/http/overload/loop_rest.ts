/**
 * A turn of the event loop accepts one connection of a socket (`uv__server_io` of libuv), however many wait. So while connections arrive, all work that has
 * turns of the event loop rests for three times as long as it took, at most 30 ms: what else the loop does, such as reading rows, takes a part of the rest.
 * Otherwise new connections would wait for seconds beside others that are busy, or beside pages of events. The rest is one for all: each would work while
 * another one rests.
 */

/** The most milliseconds of a rest, and how many it has for each millisecond of work. */
const restMsMax = 30;
const restPerWork = 3;

/** Of this thread. */
let accepted = 0;
let restUntil = Number.NEGATIVE_INFINITY;
/** The time up to which work was counted: work that does other work would count twice. */
let countedUntil = Number.NEGATIVE_INFINITY;

/** To be called for each connection. */
export function countAccepted(): void {
  accepted += 1;
}

export class LoopRest {
  #seen = 0;
  /** The end of the rest that has begun. Whoever works first after it does not prolong that of the others, which would never work. */
  #until: number | null = null;

  /** To be called once in each turn of the event loop. @returns whether this turn must be without work */
  isDue(): boolean {
    const hasAccepted = accepted !== this.#seen;
    this.#seen = accepted;
    this.#until ??= restUntil;
    if (hasAccepted && performance.now() < this.#until) return true;
    this.#until = null;
    return false;
  }

  /** Work has just taken so many milliseconds, which also put off the rest that was due before. */
  count(ms: number): void {
    const now = performance.now();
    const ownMs = Math.max(0, Math.min(ms, now - countedUntil));
    countedUntil = now;
    restUntil = Math.min(Math.max(restUntil + ownMs, now) + restPerWork * ownMs, now + restMsMax);
  }
}
