/**
 * Limits of responses that stay open: for a token, for an account (or an app that acts for itself), for an app with all its users, and for
 * a node. New tokens are easy to get, new accounts are not, and an app may have many accounts. A server that stops ends them all.
 *
 *   taken → aborted (shutdown) | released
 */

import type { FastifyInstance } from 'fastify';
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

export class StreamSlots {
  readonly #limits: SlotLimits;
  readonly #noun: string;
  readonly #open = new Map<AbortController, SlotHolder>();

  constructor(api: Pick<FastifyInstance, 'addHook'>, limits: SlotLimits = streamLimits, noun = 'streams') {
    this.#limits = limits;
    this.#noun = noun;
    api.addHook('preClose', async () => {
      for (const stream of this.#open.keys()) stream.abort();
    });
  }

  /** @throws Problem 429 if the token, its owner or its app has too many, 503 if the node has */
  take({ tokenId, owner, clientId }: SlotHolder): AbortController {
    const open = [...this.#open.values()];
    const { token, owner: ofOwner, app, node } = this.#limits;
    const tooMany = (status: number, detail: string) =>
      new Problem(status, detail, { code: 'too-many-streams', headers: { 'retry-after': '30' } });
    if (open.filter((each) => each.tokenId === tokenId).length >= token) {
      throw tooMany(429, `A token can have at most ${token} ${this.#noun}.`);
    }
    if (open.filter((each) => each.owner === owner).length >= ofOwner) {
      throw tooMany(429, `An account can have at most ${ofOwner} ${this.#noun} on a node.`);
    }
    if (open.filter((each) => each.clientId === clientId).length >= app) {
      throw tooMany(429, `An app can have at most ${app} ${this.#noun} on a node.`);
    }
    if (open.length >= node) throw tooMany(503, `This node can have no more ${this.#noun}. Try again.`);
    const slot = new AbortController();
    this.#open.set(slot, { tokenId, owner, clientId });
    return slot;
  }

  release(slot: AbortController): void {
    this.#open.delete(slot);
  }
}
