/**
 * A queue in which owners take turns, and so do the parts of an owner, such as the apps of an account: who waits with a thousand things gets as
 * many turns as who waits with one.
 */

/** Who has something, or waits for it. */
export interface Sharer {
  readonly owner: string;
  /** One of those that share what the owner gets; null if the owner is not divided. Different owners have different parts. */
  readonly part: string | null;
}

/** A sharer whose owner shares something with others, as the accounts of an app do, or the networks of a site. */
export interface GroupMember extends Sharer {
  /** Null if there are no others. The parts of an owner may belong to different groups. */
  readonly group: string | null;
}

export function undivided(owner: string): GroupMember {
  return { owner, part: null, group: null };
}

export class OwnerTurns<Thing> {
  /** By owner and part, in the order of their turns. */
  readonly #waiting = new Map<string, Map<string | null, Thing[]>>();

  get isEmpty(): boolean {
    return this.#waiting.size === 0;
  }

  /** How many owners wait. */
  get ownerCount(): number {
    return this.#waiting.size;
  }

  /** The owner whose turn is next. */
  get next(): string | undefined {
    return this.#waiting.keys().next().value;
  }

  countOf(owner: string): number {
    return (
      this.#waiting
        .get(owner)
        ?.values()
        .reduce((sum, { length }) => sum + length, 0) ?? 0
    );
  }

  countOfPart({ owner, part }: Sharer): number {
    return this.#waiting.get(owner)?.get(part)?.length ?? 0;
  }

  add(owner: string, thing: Thing, part: string | null = null): void {
    let parts = this.#waiting.get(owner);
    if (parts === undefined) {
      parts = new Map();
      this.#waiting.set(owner, parts);
    }
    const things = parts.get(part);
    if (things === undefined) parts.set(part, [thing]);
    else things.push(thing);
  }

  /** The thing that `takeOf` would take of an owner. */
  firstOf(owner: string): Thing | undefined {
    const [things] = this.#waiting.get(owner)?.values() ?? [];
    return things?.[0];
  }

  /** What the part waits with last. */
  lastOfPart({ owner, part }: Sharer): Thing | undefined {
    return this.#waiting.get(owner)?.get(part)?.at(-1);
  }

  /** The owners in the order of their turns. One whose thing is taken meanwhile comes again. */
  owners(): MapIterator<string> {
    return this.#waiting.keys();
  }

  /** The first thing of each part, in the order of their turns. */
  *firsts(): Iterable<readonly [sharer: Sharer, thing: Thing]> {
    for (const [owner, parts] of this.#waiting)
      for (const [part, [thing]] of parts) yield [{ owner, part }, thing as Thing];
  }

  /** What each owner waits with, in the order of its turns. */
  *lines(): Iterable<Thing[]> {
    for (const parts of this.#waiting.values()) {
      const line: Thing[] = [];
      let left = [...parts.values()];
      for (let turn = 0; left.length > 0; turn += 1) {
        left = left.filter(({ length }) => length > turn);
        for (const things of left) line.push(things[turn] as Thing);
      }
      yield line;
    }
  }

  /** Takes the first thing of the next owner, whose next turn comes after those of all others. */
  take(): Thing | undefined {
    const { next } = this;
    return next === undefined ? undefined : this.takeOf(next);
  }

  /**
   * Takes the first thing of an owner, whose next turn comes after those of all others.
   * @param part whose thing it is; undefined for the part whose turn is next
   */
  takeOf(owner: string, part?: string | null): Thing | undefined {
    const parts = this.#waiting.get(owner);
    const chosen = part === undefined ? parts?.keys().next().value : part;
    const things = chosen === undefined ? undefined : parts?.get(chosen);
    if (parts === undefined || chosen === undefined || things === undefined) return undefined;
    const thing = things.shift();
    parts.delete(chosen);
    if (things.length > 0) parts.set(chosen, things);
    this.#waiting.delete(owner);
    if (parts.size > 0) this.#waiting.set(owner, parts);
    return thing;
  }

  /** The next turn of the owner comes after those of all others. */
  postpone(owner: string): void {
    const parts = this.#waiting.get(owner);
    if (parts === undefined) return;
    this.#waiting.delete(owner);
    this.#waiting.set(owner, parts);
  }

  /** Takes everything that the owner waits with. */
  takeAll(owner: string): Thing[] {
    const parts = this.#waiting.get(owner);
    this.#waiting.delete(owner);
    return [...(parts?.values() ?? [])].flat();
  }

  /** Removes a thing of an owner. The first ones are found at once, so thousands that go in their order take little time. */
  remove(owner: string, thing: Thing): void {
    const parts = this.#waiting.get(owner);
    for (const [part, things] of parts ?? []) {
      const at = things.indexOf(thing);
      if (at < 0) continue;
      things.splice(at, 1);
      if (things.length === 0) parts?.delete(part);
      break;
    }
    if (parts?.size === 0) this.#waiting.delete(owner);
  }

  /** Takes the things that must go. The others keep their turns. */
  takeIf(mustGo: (thing: Thing) => boolean): Thing[] {
    const taken: Thing[] = [];
    for (const [owner, parts] of this.#waiting) {
      for (const [part, things] of parts) {
        const { gone = [], left = [] } = Object.groupBy(things, (thing) => (mustGo(thing) ? 'gone' : 'left'));
        if (gone.length === 0) continue;
        taken.push(...gone);
        if (left.length > 0) parts.set(part, left);
        else parts.delete(part);
      }
      if (parts.size === 0) this.#waiting.delete(owner);
    }
    return taken;
  }
}
