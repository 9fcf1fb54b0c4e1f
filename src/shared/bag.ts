/**
 * A set of objects in no order, for those that come and go with each request. V8 gives a `Set` or `Map` a new table after some deletions,
 * and the old table still points to its entries and to the new one. Once one table is in the old generation, all later ones keep their
 * entries through the collections of the young generation, which then take several times as long. The array of a bag never shrinks, so it
 * is moved only when the bag has more items than ever before.
 */

/** An object that can be in one bag at a time. */
export class BagItem {
  /** Where it is; null if it is in none. Only the bag sets it. */
  index: number | null = null;
}

export class Bag<Item extends BagItem> {
  /** Undefined from `size` on. */
  readonly #items: (Item | undefined)[] = [];
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** Adds an item that is in no bag. */
  add(item: Item): void {
    item.index = this.#size;
    this.#items[this.#size] = item;
    this.#size += 1;
  }

  /** @returns whether it was in the bag */
  delete(item: Item): boolean {
    const { index } = item;
    if (index === null) return false;
    item.index = null;
    this.#size -= 1;
    const last = this.#items[this.#size] as Item;
    this.#items[this.#size] = undefined;
    if (last !== item) {
      last.index = index;
      this.#items[index] = last;
    }
    return true;
  }

  /** Takes out all items. */
  takeAll(): Item[] {
    const items = [...this];
    this.#items.fill(undefined, 0, this.#size);
    this.#size = 0;
    for (const item of items) item.index = null;
    return items;
  }

  /** The bag must not change meanwhile. */
  *[Symbol.iterator](): Generator<Item> {
    for (let index = 0; index < this.#size; index += 1) yield this.#items[index] as Item;
  }
}
