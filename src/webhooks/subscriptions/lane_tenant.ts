/** The tenant of a lane that is not in memory. */

import { type RawBuilder, sql } from 'kysely';
import { tenantName } from '../../shared/tenant.ts';

/** Columns of `laneTenant`; all are null if the lane has no subscription any more. */
export interface LaneTenantRow {
  account_id: string | null;
  creator_id: string | null;
  client_id: string | null;
}

/** A lateral subquery with one row or none, with the columns of `LaneTenantRow`, and `tenant` for that of `lane_progress`. */
export function laneTenant(lane: RawBuilder<unknown>) {
  return sql`(
    select s.account_id, s.client_id, c.account_id as creator_id,
      coalesce(s.account_id, md5(coalesce('creator:' || c.account_id, 'client:' || s.client_id))::uuid) as tenant
    from subscriptions s left join app_creators c on c.client_id = s.client_id and s.owner = 'client'
    where s.lane = ${lane} offset 0)`;
}

/** @returns the tenant's name; null if the lane has no subscription any more */
export function readLaneTenant(row: LaneTenantRow): string | null {
  const { account_id: accountId, creator_id: creatorId, client_id: clientId } = row;
  return accountId === null && clientId === null ? null : tenantName({ accountId, creatorId, clientId });
}
