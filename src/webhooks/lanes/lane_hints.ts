/**
 * Hints of other nodes about lanes (database/hints.ts). A hint says that something changed which a lane depends on, or that an
 * event was erased. This node then reads the lane from the database again. It does nothing else, whoever sent the hint.
 */

import { sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { HintBatch } from '../../database/hints.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { Lane } from './lane.ts';
import type { LaneLeases } from './lane_leases.ts';
import type { LeasedLanes } from './leased_lanes.ts';

const numberForm = /^[1-9]\d{0,15}$/;
/** The lanes of a client's own subscriptions. */
const clientForm = /^client:([\x21-\x7e]{1,2048})$/;
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
   * Something changed that lanes depend on. A payload is a lane, or a client, which stands for its own lanes.
   * @returns how many of the payloads name nothing that exists
   */
  async changed({ payloads, isCut }: HintBatch): Promise<number> {
    const { lanes, leases } = this.#options;
    const texts = [...payloads];
    const named = new Set(texts.filter((text) => numberForm.test(text)).map(Number));
    const clients = new Set(texts.flatMap((text) => clientForm.exec(text)?.[1] ?? []));
    await (isCut
      ? leases.review()
      : leases.reloadWhere(
          ({ id, subscription: { grantId, clientId } }) =>
            named.has(id) || (grantId === null && clientId !== null && clients.has(clientId)),
          // It is not known yet whose these are.
          (lane) => named.has(lane) || clients.size > 0,
        ));
    const others = [...named].filter((lane) => !lanes.has(lane));
    // A lane of no node may be due now.
    if (isCut || others.length > 0) leases.claimSoon();
    const malformed = texts.length - named.size - clients.size;
    return malformed + (await this.#countUnknown(others, [...clients]));
  }

  async #countUnknown(lanes: readonly number[], clients: readonly string[]): Promise<number> {
    if (lanes.length + clients.length === 0) return 0;
    const { rows } = await sql<{ count: number }>`
      select (
        (select count(*) from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
          where not exists (select from subscriptions s where s.lane = given.lane offset 0))
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
