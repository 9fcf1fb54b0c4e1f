/**
 * Hints of other nodes about lanes (database/hints.ts). A hint says that something changed which a lane depends on, or that an
 * event was erased. This node then reads the lane from the database again. It does nothing else, whoever sent the hint.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { HintBatch } from '../../database/hints.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import type { Lane } from './lane.ts';
import type { LaneLeases } from './lane_leases.ts';
import type { LeasedLanes } from './leased_lanes.ts';

const numberForm = /^[1-9]\d{0,15}$/;
const uuid = '[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}';
const clientId = '[\\x21-\\x7e]{1,2048}';
/** Several lanes: of a grant, of an account, of a client's own subscriptions, or of an app, also for its users. */
const groupForms = {
  grant: new RegExp(`^grant:(${uuid})$`),
  account: new RegExp(`^account:(${uuid})$`),
  client: new RegExp(`^client:(${clientId})$`),
  app: new RegExp(`^app:(${clientId})$`),
};
/**
 * Milliseconds that a batch waits for its lanes to be loaded. Hints of others wait for the batch, and a tenant can have thousands of lanes. The
 * loader gives turns to tenants.
 */
const waitMsMax = 50;
type Groups = Record<keyof typeof groupForms, ReadonlySet<string>>;
const positionsForm = /^[1-9]\d{0,15}(,[1-9]\d{0,15}){0,99}$/;

export interface LaneHintsOptions {
  db: Database;
  cache: EventCache;
  lanes: LeasedLanes;
  leases: LaneLeases;
}

export class LaneHints {
  readonly #options: LaneHintsOptions;

  constructor(options: LaneHintsOptions) {
    this.#options = options;
  }

  /**
   * Something changed that lanes depend on. A payload is a lane or a group of lanes.
   * @returns how many of the payloads name nothing that exists
   */
  async changed({ payloads, isCut }: HintBatch): Promise<number> {
    const { lanes, leases } = this.#options;
    const texts = [...payloads];
    const named = new Set(texts.filter((text) => numberForm.test(text)).map(Number));
    const groups = readGroups(texts);
    const groupCount = Object.values(groups).reduce((sum, { size }) => sum + size, 0);
    if (isCut) await leases.review();
    else {
      const reloaded = leases.reloadWhere(
        ({ id, subscription }) => named.has(id) || isInGroup(subscription, groups),
        // It is not known yet whose these are.
        (lane) => named.has(lane) || groupCount > 0,
      );
      await Promise.race([reloaded, sleep(waitMsMax, undefined, { ref: false })]);
    }
    const others = [...named].filter((lane) => !lanes.has(lane));
    // A lane of no node may be due now.
    if (isCut || others.length > 0) leases.claimSoon();
    const malformed = texts.length - named.size - groupCount;
    return malformed + (groupCount + others.length > 0 ? await this.#countUnknown(others, groups) : 0);
  }

  async #countUnknown(lanes: readonly number[], groups: Groups): Promise<number> {
    const clients = [...groups.client, ...groups.app];
    const { rows } = await sql<{ count: number }>`
      select (
        (select count(*) from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
          where not exists (select from subscriptions s where s.lane = given.lane offset 0))
        + (select count(*) from unnest(${[...groups.grant]}::uuid[]) as given (id)
          where not exists (select from grants g where g.id = given.id offset 0))
        + (select count(*) from unnest(${[...groups.account]}::uuid[]) as given (id)
          where not exists (select from accounts a where a.id = given.id offset 0))
        + (select count(*) from unnest(${clients}::text[]) as given (id)
          where not exists (select from clients c where c.id = given.id offset 0))
      )::int as count`.execute(this.#options.db);
    return rows[0]?.count ?? 0;
  }

  /**
   * Events were erased. The payloads are lists of positions. This node reads the events again that it has in memory.
   * @returns how many of the payloads are not lists of positions
   */
  async erased({ payloads, isCut }: HintBatch): Promise<number> {
    const { cache, lanes, leases } = this.#options;
    const lists = [...payloads].filter((text) => positionsForm.test(text));
    // A batch can have a hundred thousand positions, and a node can have deliveries of many tenants. So no loop runs over both.
    const positions = new Set(lists.flatMap((text) => text.split(',').map(Number)));
    if (isCut) cache.clear();
    else for (const position of positions) cache.drop(position);
    const tenants = new Set([...lanes.all()].map(({ tenant }) => tenant));
    const concerned = new Set([...tenants].filter((tenant) => isCut || tenant.hasAny(positions)));
    await leases.reloadWhere((lane: Lane) => concerned.has(lane.tenant));
    return payloads.size - lists.length;
  }
}

function readGroups(texts: readonly string[]): Groups {
  const idsOf = (form: RegExp) => new Set(texts.flatMap((text) => form.exec(text)?.[1] ?? []));
  const { grant, account, client, app } = groupForms;
  return { grant: idsOf(grant), account: idsOf(account), client: idsOf(client), app: idsOf(app) };
}

function isInGroup({ grantId, accountId, clientId }: Subscription, groups: Groups): boolean {
  if (accountId !== null && groups.account.has(accountId)) return true;
  if (clientId !== null && groups.app.has(clientId)) return true;
  if (grantId !== null) return groups.grant.has(grantId);
  return clientId !== null && groups.client.has(clientId);
}
