/**
 * Limits of responses that stay open: for a token, for an account (or an app that acts for itself), for an app with all its users, and for
 * a node. New tokens are easy to get, new accounts are not, and an app may have many accounts. Ten accounts with two apps could fill a
 * node, and one app all that its user may have. So a stream that finds its account, app or node full takes the place of one of the app or
 * account that has most there, if that has at least two more than its own: whoever has few streams always gets one. On a node, only accounts
 * that have more than its own lose one: anybody has many apps, and these would otherwise end the streams of an app with many users. What cannot be
 * resumed ends for nobody, so accounts, and the apps of an account, have shares of it instead (shared/share.ts). A server that stops ends them all.
 *
 *   taken → aborted (shutdown, or its place is needed) | released
 */

import type { FastifyInstance } from 'fastify';
import { isFree } from '../shared/share.ts';
import { type TenantParts, tenantName } from '../shared/tenant.ts';
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
  /** Who shares the node with others as one (shared/tenant.ts). */
  tenant: string;
  clientId: string;
}

type Group = 'owner' | 'tenant' | 'clientId';

type Open = [slot: AbortController, holder: SlotHolder];

/** Why a signal aborted: the place is needed for somebody with fewer streams. */
export const displaced = 'displaced';

/** The holder of a token's responses. */
export function holderOf(of: TenantParts & Pick<SlotHolder, 'tokenId' | 'clientId'>): SlotHolder {
  const { tokenId, accountId, clientId } = of;
  return { tokenId, owner: accountId ?? `client:${clientId}`, tenant: tenantName(of), clientId };
}

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
  take(holder: SlotHolder): AbortController {
    const { tokenId, owner, tenant, clientId } = holder;
    const { token, owner: ofOwner, app, node } = this.#limits;
    const counts = { token: 0, owner: 0, tenant: 0, app: 0, ownerInApp: 0 };
    for (const each of this.#open.values()) {
      if (each.tokenId === tokenId) counts.token += 1;
      if (each.owner === owner) counts.owner += 1;
      if (each.tenant === tenant) counts.tenant += 1;
      if (each.clientId === clientId) counts.app += 1;
      if (each.owner === owner && each.clientId === clientId) counts.ownerInApp += 1;
    }
    const tooMany = (status: number, detail: string) =>
      new Problem(status, detail, { code: 'too-many-streams', headers: { 'retry-after': '30' } });
    if (counts.token >= token) {
      throw tooMany(429, `A token can have at most ${token} ${this.#noun}.`);
    }
    const ended: AbortController[] = [];
    const endOne = (
      groups: readonly Group[],
      isMeant: (each: SlotHolder) => boolean,
      problem: Problem,
      atLeast = 0,
    ) => {
      const found = this.#findOneOfMost(holder, groups, isMeant, atLeast);
      if (found === undefined) throw problem;
      ended.push(found);
    };
    if (this.#isFull(ofOwner, counts.owner, counts.ownerInApp)) {
      const problem = tooMany(429, `An account can have at most ${ofOwner} ${this.#noun} on a node.`);
      endOne(['clientId'], (each) => each.owner === owner, problem);
    }
    if (this.#isFull(app, counts.app, counts.ownerInApp)) {
      const problem = tooMany(429, `An app can have at most ${app} ${this.#noun} on a node.`);
      endOne(['owner'], (each) => each.clientId === clientId, problem);
    }
    if (ended.length === 0 && this.#isFull(node, this.#open.size, counts.tenant)) {
      const problem = tooMany(503, `This node can have no more ${this.#noun}. Try again.`);
      endOne(['clientId', 'tenant'], () => true, problem, counts.tenant + 1);
    }
    for (const one of ended) {
      this.#open.delete(one);
      one.abort(displaced);
    }
    const slot = new AbortController();
    this.#open.set(slot, { tokenId, owner, tenant, clientId });
    return slot;
  }

  /** Whether an owner may have no more of so many without the place of another one. */
  #isFull(size: number, used: number, own: number): boolean {
    return this.#areResumable ? used >= size : !isFree(size, used, own);
  }

  /**
   * Finds a response of whoever has most, to end it.
   * @param groups what is compared, in this order @param isMeant whose responses are compared
   * @param atLeast how many of these a tenant has that may lose one
   * @returns undefined if nobody has at least two more than the holder
   */
  #findOneOfMost(
    holder: SlotHolder,
    groups: readonly Group[],
    isMeant: (each: SlotHolder) => boolean,
    atLeast: number,
  ): AbortController | undefined {
    if (!this.#areResumable) return undefined;
    const open = [...this.#open].filter(([, each]) => isMeant(each));
    const ofTenant = groupsOf(open, 'tenant');
    const mayLose = ([, { tenant }]: Open) => (ofTenant.get(tenant)?.length ?? 0) >= atLeast;
    for (const group of groups) {
      const byGroup = groupsOf(open, group);
      const least = (byGroup.get(holder[group])?.length ?? 0) + 2;
      for (const most of byGroup.values()) {
        if (most.length < least) break;
        // Of an app, the account that has most; the oldest response of that.
        const [ofOne] = groupsOf(most.filter(mayLose), 'owner').values();
        const [[slot] = []] = ofOne ?? [];
        if (slot !== undefined) return slot;
      }
    }
    return undefined;
  }

  release(slot: AbortController): void {
    this.#open.delete(slot);
  }
}

/** The largest first. */
function groupsOf(open: readonly Open[], group: Group): ReadonlyMap<string, Open[]> {
  const groups = Map.groupBy(open, ([, each]) => each[group]);
  return new Map([...groups].sort(([, one], [, other]) => other.length - one.length));
}
