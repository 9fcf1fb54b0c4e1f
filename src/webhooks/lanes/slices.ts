/**
 * Divides many lanes into slices that take turns, one slice for each call. What a call costs does not depend on the number of lanes. Tenants
 * have equal shares of a slice, so the lanes of those that have few do not wait for the lanes of others.
 */

export class Slices<T extends { readonly id: number }> {
  readonly #sizeMax: number;
  readonly #tenantOf: (lane: T) => unknown;
  #turn = 0;

  /** @param sizeMax lanes of a slice, on average @param tenantOf default: all lanes are of the same tenant */
  constructor(sizeMax: number, tenantOf: (lane: T) => unknown = () => undefined) {
    this.#sizeMax = sizeMax;
    this.#tenantOf = tenantOf;
  }

  /**
   * The lanes of the next slice. The number of slices of a tenant is a power of two. So each lane has its turn within as many calls as there
   * are slices at most, also when their number changes in between.
   */
  next(lanes: readonly T[]): T[] {
    const owned = new Map<unknown, number>();
    for (const lane of lanes) {
      const tenant = this.#tenantOf(lane);
      owned.set(tenant, (owned.get(tenant) ?? 0) + 1);
    }
    const share = this.#sizeMax / owned.size;
    const isWhole = lanes.length <= this.#sizeMax;
    const sliceCountOf = (count: number) =>
      isWhole ? 1 : 2 ** Math.max(0, Math.ceil(Math.log2(count / share)));
    const sliceCounts = new Map(owned.entries().map(([tenant, count]) => [tenant, sliceCountOf(count)]));
    this.#turn += 1;
    return lanes.filter((lane) => {
      const count = sliceCounts.get(this.#tenantOf(lane)) as number;
      return lane.id % count === this.#turn % count;
    });
  }
}
