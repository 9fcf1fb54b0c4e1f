/**
 * Limits of responses that stay open: for a token, for an account (or an app that acts for itself), for an app with all its users, and for
 * a node. New tokens are easy to get, new accounts are not, and an app may have many accounts. Ten accounts with two apps could fill a
 * node. So a stream that finds its app or node full takes the place of one of the app or account that has most, if that has at least two more
 * than its own: whoever has few streams always gets one. What cannot be resumed ends for nobody, so accounts have shares of it instead
 * (shared/share.ts). A server that stops ends them all.
 *
 *   taken → aborted (shutdown, or its place is needed) | released
 */

import type { FastifyInstance } from 'fastify';
import { isFree } from '../shared/share.ts';
import { Problem } from './problem.ts';

/** Maxima of one token, one account or app that acts for itself, one app, and one node. */
export interface SlotLimits {
  token: number;
  owner: number;
  app: number;
  node: number;
}

const streamLimits: SlotLimits = { token: 5, owner: 20, app: 100, node: 200 };

export interface SlotHolder {
  tokenId: string;
  /** The account, or the app that acts for itself. */
  owner: string;
  clientId: string;
}

/** Why a signal aborted: the place is needed for somebody with fewer streams. */
export const displaced = 'displaced';

export interface SlotOptions {
  limits?: SlotLimits;
  noun?: string;
  /** Whether clients continue elsewhere when their response ends. Otherwise none ends for another one. */
  areResumable?: boolean;
}

export class StreamSlots {
  readonly #limits: SlotLimits;
  readonly #noun: string;
  readonly #areResumable: boolean;
  readonly #open = new Map<AbortController, SlotHolder>();

  constructor(
    api: Pick<FastifyInstance, 'addHook'>,
    { limits = streamLimits, noun = 'streams', areResumable = true }: SlotOptions = {},
  ) {
    this.#limits = limits;
    this.#noun = noun;
    this.#areResumable = areResumable;
    api.addHook('preClose', async () => {
      for (const stream of this.#open.keys()) stream.abort();
    });
  }

  /** @throws Problem 429 if the token, its owner or its app has too many, 503 if the node has */
  take({ tokenId, owner, clientId }: SlotHolder): AbortController {
    const { token, owner: ofOwner, app, node } = this.#limits;
    const counts = { token: 0, owner: 0, app: 0, ownerInApp: 0 };
    for (const each of this.#open.values()) {
      if (each.tokenId === tokenId) counts.token += 1;
      if (each.owner === owner) counts.owner += 1;
      if (each.clientId === clientId) counts.app += 1;
      if (each.owner === owner && each.clientId === clientId) counts.ownerInApp += 1;
    }
    const tooMany = (status: number, detail: string) =>
      new Problem(status, detail, { code: 'too-many-streams', headers: { 'retry-after': '30' } });
    if (counts.token >= token) {
      throw tooMany(429, `A token can have at most ${token} ${this.#noun}.`);
    }
    if (counts.owner >= ofOwner) {
      throw tooMany(429, `An account can have at most ${ofOwner} ${this.#noun} on a node.`);
    }
    const ofApp = this.#isFull(app, counts.app, counts.ownerInApp);
    const holder = { tokenId, owner, clientId };
    if (ofApp && !this.#displace(holder, ['owner'], clientId)) {
      throw tooMany(429, `An app can have at most ${app} ${this.#noun} on a node.`);
    }
    const ofNode = !ofApp && this.#isFull(node, this.#open.size, counts.owner);
    if (ofNode && !this.#displace(holder, ['clientId', 'owner'], null)) {
      throw tooMany(503, `This node can have no more ${this.#noun}. Try again.`);
    }
    const slot = new AbortController();
    this.#open.set(slot, holder);
    return slot;
  }

  /** Whether an owner may have no more of so many without the place of another one. */
  #isFull(size: number, used: number, own: number): boolean {
    return this.#areResumable ? used >= size : !isFree(size, used, own);
  }

  /**
   * Ends a response of whoever has most.
   * @param groups what is compared, in this order @param clientId only responses of this app; null for all
   * @returns whether there is room now
   */
  #displace(holder: SlotHolder, groups: readonly ('owner' | 'clientId')[], clientId: string | null): boolean {
    if (!this.#areResumable) return false;
    const open = [...this.#open].filter(([, each]) => clientId === null || each.clientId === clientId);
    for (const group of groups) {
      const byGroup = Map.groupBy(open, ([, each]) => each[group]);
      const own = byGroup.get(holder[group])?.length ?? 0;
      const [most = []] = [...byGroup.values()].toSorted((a, b) => b.length - a.length);
      if (most.length < own + 2) continue;
      // Of an app, the account that has most; the oldest response of that.
      const [ofOwner = []] = [...Map.groupBy(most, ([, { owner }]) => owner).values()].toSorted(
        (a, b) => b.length - a.length,
      );
      const [[slot] = []] = ofOwner;
      if (slot === undefined) continue;
      this.#open.delete(slot);
      slot.abort(displaced);
      return true;
    }
    return false;
  }

  release(slot: AbortController): void {
    this.#open.delete(slot);
  }
}
