/** A queue in which owners take turns: who waits with a thousand things gets as many turns as who waits with one. */
export class OwnerTurns<Thing> {
  /** By owner, in the order of their turns. */
  readonly #waiting = new Map<string, Thing[]>();

  get isEmpty(): boolean {
    return this.#waiting.size === 0;
  }

  /** The owner whose turn is next. */
  get next(): string | undefined {
    return this.#waiting.keys().next().value;
  }

  countOf(owner: string): number {
    return this.#waiting.get(owner)?.length ?? 0;
  }

  add(owner: string, ...things: Thing[]): void {
    const those = this.#waiting.get(owner);
    if (those === undefined) this.#waiting.set(owner, things);
    else those.push(...things);
  }

  /** The owners in the order of their turns. One whose thing is taken meanwhile comes again. */
  owners(): MapIterator<string> {
    return this.#waiting.keys();
  }

  /** Takes the first thing of the next owner, whose next turn comes after those of all others. */
  take(): Thing | undefined {
    const { next } = this;
    return next === undefined ? undefined : this.takeOf(next);
  }

  /** Takes the first thing of an owner, whose next turn comes after those of all others. */
  takeOf(owner: string): Thing | undefined {
    const those = this.#waiting.get(owner);
    if (those === undefined) return undefined;
    const thing = those.shift();
    this.#waiting.delete(owner);
    if (those.length > 0) this.#waiting.set(owner, those);
    return thing;
  }

  /** Takes everything that the owner waits with. */
  takeAll(owner: string): Thing[] {
    const those = this.#waiting.get(owner) ?? [];
    this.#waiting.delete(owner);
    return those;
  }
}
