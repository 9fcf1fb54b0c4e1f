/**
 * The networks from which apps have authenticated lately. Many apps of different owners share one, such as the addresses of a platform that
 * runs them, so what strangers send from it must not keep these apps out. In memory: after a start, each node learns them again.
 */

import { LRUCache } from 'lru-cache';
import { networksOf } from '../http/network.ts';

const appsMax = 10_000;
const networksOfAppMax = 16;

export class KnownNetworks {
  /** Of each app by its id, those that were used last at the end. */
  readonly #networks = new LRUCache<string, Set<string>>({ max: appsMax });

  /** The app has authenticated. */
  add(clientId: string, address: string): void {
    const { near } = networksOf(address);
    let networks = this.#networks.get(clientId);
    if (networks === undefined) {
      networks = new Set();
      this.#networks.set(clientId, networks);
    }
    networks.delete(near);
    networks.add(near);
    if (networks.size > networksOfAppMax) networks.delete(networks.values().next().value as string);
  }

  has(clientId: string, address: string): boolean {
    return this.#networks.peek(clientId)?.has(networksOf(address).near) === true;
  }
}
