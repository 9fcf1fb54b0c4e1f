/** Users with subscriptions, inserted in bulk: one by one, 20,000 subscriptions would take minutes. */

import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { createSealer } from '../../src/crypto/sealing.ts';
import { newLane } from '../../src/webhooks/subscriptions/delivery_id.ts';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { createTestClient } from '../../test/support/clients/oauth.ts';
import { testSecret } from '../../test/support/servers/server.ts';
import type { Bench, GrantPlace } from '../deliveries/support.ts';

export const scopes = ['read:posts', 'read:profile', 'read:webhooks', 'write:webhooks'];
/** Subscriptions of one statement. */
const atOnce = 5_000;

export interface CrowdMember extends GrantPlace {
  /** Its subscriptions and their lanes. */
  subscriptions: string[];
  lanes: number[];
}

export interface CrowdOptions {
  users: number;
  subscriptionsOfEach: number;
  urlOf: (index: number) => string;
  rateLimit?: number;
  kinds?: readonly string[];
  /** The app. Default: a new one. */
  clientId?: string;
}

/** Creates users who granted one app, with the same number of subscriptions each. */
export async function makeCrowd(bench: Bench, options: CrowdOptions): Promise<CrowdMember[]> {
  const clientId = options.clientId ?? (await createTestClient(bench, { scopes })).id;
  const members = Array.from({ length: options.users }, () => ({
    accountId: newId(),
    grantId: newId(),
    clientId,
    subscriptions: [] as string[],
    lanes: [] as number[],
  }));
  await insertMembers(bench, clientId, members);
  const rows = members.flatMap((member) =>
    Array.from({ length: options.subscriptionsOfEach }, () => ({ member, id: newId(), lane: newLane() })),
  );
  for (let from = 0; from < rows.length; from += atOnce) {
    await insertSubscriptions(bench, rows.slice(from, from + atOnce), from, options);
  }
  for (const { member, id, lane } of rows) {
    member.subscriptions.push(id);
    member.lanes.push(lane);
  }
  await sql`analyze accounts, grants, subscriptions, lanes, lane_progress`.execute(bench.db);
  return members;
}

async function insertMembers(bench: Bench, clientId: string, members: readonly GrantPlace[]): Promise<void> {
  const accounts = members.map(({ accountId }) => accountId);
  const grants = members.map(({ grantId }) => grantId);
  // With an external id, so that a machine client of the operator may withdraw their grants.
  await sql`
    insert into accounts (id, external_id, name) select id, 'user-' || id, '' from unnest(${accounts}::uuid[]) as id`.execute(
    bench.db,
  );
  await sql`
    insert into grants (id, account_id, client_id, scopes, created_at)
    select id, account_id, ${clientId}, ${[...scopes].sort()}::text[], now() - interval '1 day'
    from unnest(${grants}::uuid[], ${accounts}::uuid[]) as given (id, account_id)`.execute(bench.db);
}

async function insertSubscriptions(
  { db }: Bench,
  rows: readonly { member: GrantPlace; id: string; lane: number }[],
  from: number,
  { urlOf, rateLimit, kinds = ['push'] }: CrowdOptions,
): Promise<void> {
  const sealer = createSealer(testSecret, 'subscription-secret');
  const lanes = rows.map(({ lane }) => lane);
  await db.transaction().execute(async (tx) => {
    await sql`
      insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret, rate_limit)
      select id, lane, 'grant', grant_id, account_id, client_id, url, ${kinds}::text[], 'timestamp', secret, ${rateLimit ?? null}::int
      from unnest(
        ${rows.map(({ id }) => id)}::uuid[], ${lanes}::bigint[],
        ${rows.map(({ member }) => member.grantId)}::uuid[], ${rows.map(({ member }) => member.accountId)}::uuid[],
        ${rows.map(({ member }) => member.clientId)}::text[], ${rows.map((_, index) => urlOf(from + index))}::text[],
        ${rows.map(({ id }) => sealer.seal(makeSecret(), id))}::bytea[]
      ) as given (id, lane, grant_id, account_id, client_id, url, secret)`.execute(tx);
    await sql`insert into lanes (id) select unnest(${lanes}::bigint[])`.execute(tx);
    await sql`insert into lane_progress (lane, tenant) select * from unnest(${lanes}::bigint[], ${rows.map(({ member }) => member.accountId)}::uuid[])`.execute(
      tx,
    );
  });
}
