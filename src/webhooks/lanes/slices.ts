/**
 * Divides many lanes into slices that take turns, one slice for each call. What a call costs does not depend on the number of lanes.
 */

export class Slices<T extends { readonly id: number }> {
  readonly #sizeMax: number;
  #turn = 0;

  /** @param sizeMax lanes of a slice, on average */
  constructor(sizeMax: number) {
    this.#sizeMax = sizeMax;
  }

  /**
   * The lanes of the next slice. The number of slices is a power of two. So each lane has its turn within as many calls as there are
   * slices at most, also when their number changes in between.
   */
  next(lanes: readonly T[]): T[] {
    const count = 2 ** Math.max(0, Math.ceil(Math.log2(lanes.length / this.#sizeMax)));
    this.#turn += 1;
    const turn = this.#turn % count;
    return lanes.filter(({ id }) => id % count === turn);
  }
}
