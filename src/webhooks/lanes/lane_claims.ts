/**
 * Claims due lanes that no node leases: those that have been due longest, and if more are due than one statement takes, a few of each tenant
 * besides. Writes `lane_progress`.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { type LaneTenantRow, laneTenant, readLaneTenant } from '../subscriptions/lane_tenant.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { LaneLoader } from './lane_loader.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { WorkerMetrics } from './metrics.ts';

/** Maximum lanes of one claim; and for turns, the tenants of one statement and the lanes of each. */
const claimMax = 500;
const tenantsMax = 128;
const turnMax = 4;
const claimPauseMs = 500;
/** Before the first tenant. */
const firstTenant = '00000000-0000-0000-0000-000000000000';

export interface LaneClaimsOptions {
  db: Database;
  /** This node's id. */
  node: string;
  lanes: LeasedLanes;
  loader: LaneLoader;
  background: BackgroundTasks;
  metrics: WorkerMetrics;
  /** Whether this node can lease more lanes now. */
  hasRoom: (now: number) => boolean;
}

export class LaneClaims {
  readonly #options: LaneClaimsOptions;
  #at = 0;
  #isRunning = false;
  /** The last tenant that had a turn. */
  #after = firstTenant;

  constructor(options: LaneClaimsOptions) {
    this.#options = options;
  }

  /** A lane that no node leases may be due. */
  soon(): void {
    this.#at = 0;
  }

  tick(now: number): void {
    if (now < this.#at) return;
    this.#at = now + claimPauseMs;
    if (this.#isRunning || !this.#options.hasRoom(now)) return;
    this.#isRunning = true;
    this.#options.background.run(async () => {
      try {
        await this.#claim();
      } finally {
        this.#isRunning = false;
      }
    });
  }

  async #claim(): Promise<void> {
    const { db, node, lanes, loader } = this.#options;
    const oldest = await claimLanes(db, node, claimMax);
    this.#load(oldest);
    if (oldest.size < claimMax) return;
    const { claimed, last } = await claimByTurns(db, node, this.#after, tenantsMax, turnMax);
    this.#load(claimed);
    this.#after = last ?? firstTenant;
    // Lanes of tenants that have no room are due again later. If there are only such lanes, this can wait.
    const isTaken = [...oldest.keys(), ...claimed.keys()].some(
      (lane) => loader.isLoading(lane) || lanes.has(lane),
    );
    const hasMore = last !== null || isTaken;
    if (hasMore && lanes.room > loader.newCount) this.#at = 0;
  }

  #load(claimed: ReadonlyMap<number, string | null>): void {
    const { loader, metrics } = this.#options;
    if (claimed.size > 0) metrics.claimed(claimed.size);
    void loader.load([...claimed.keys()], claimed);
  }
}

/** Claims the lanes that have been due longest. @returns their ids, each with its tenant */
export async function claimLanes(
  db: Database,
  node: string,
  limit: number,
): Promise<Map<number, string | null>> {
  const due = sql`
    select lane from lane_progress where owner is null and due_at <= now()
    order by due_at limit ${limit} for update skip locked`;
  const { rows } = await sql<ClaimedRow>`
    with due as materialized (${due}), ${claimOf(node)}
    select * from claimed`.execute(db);
  return readClaimed(rows);
}

/**
 * Claims a few lanes of each of the tenants after `after`.
 * @returns the claimed lanes, each with its tenant; and the last tenant that had a turn, null if there are no more after it
 */
export async function claimByTurns(
  db: Database,
  node: string,
  after: string,
  tenants: number,
  limit: number,
): Promise<{ claimed: Map<number, string | null>; last: string | null }> {
  const next = (than: RawBuilder<unknown>) => sql`
    select tenant from lane_progress where owner is null and due_at <= now() and tenant > ${than} order by tenant limit 1`;
  const { rows } = await sql<ClaimedRow & { last: string | null }>`
    with recursive turns (tenant, place) as (
      select (${next(sql`${after}::uuid`)}), 1
      union all
      select (${next(sql`turns.tenant`)}), place + 1 from turns where turns.tenant is not null and place < ${tenants}::int
    ),
    due as materialized (
      select own.lane from turns cross join lateral (
        select lane from lane_progress
        where owner is null and due_at <= now() and lane_progress.tenant = turns.tenant
        order by due_at limit ${limit} for update skip locked
      ) as own
    ),
    ${claimOf(node)}
    select claimed.*, last.*
    from (select (array_agg(tenant order by place desc))[1] as last from turns) as last
    left join claimed on true`.execute(db);
  const last = rows[0]?.last ?? null;
  return { claimed: readClaimed(rows.filter(({ lane }) => lane !== null)), last };
}

type ClaimedRow = { lane: string } & LaneTenantRow;

/** The part of a statement that claims the lanes of `due`. */
function claimOf(node: string) {
  return sql`claimed as (
    update lane_progress set owner = ${node}::bigint, due_at = null, tenant = of.tenant
    from due left join lateral ${laneTenant(sql`due.lane`)} as of on true
    where lane_progress.lane = due.lane
    returning lane_progress.lane, of.account_id, of.creator_id, of.client_id
  )`;
}

function readClaimed(rows: readonly ClaimedRow[]): Map<number, string | null> {
  return new Map(rows.map((row) => [Number(row.lane), readLaneTenant(row)]));
}
