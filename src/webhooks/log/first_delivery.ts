/** The first delivery of a grant's subscriptions, which is the last step of a connection (src/connections). */

import { sql } from 'kysely';
import type { Connection } from '../../connections/connection_store.ts';
import type { Step } from '../../connections/step.ts';
import { uuidArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';

/** Of a grant, this many subscriptions are looked at, the oldest first: an app may have very many for a user, and each is looked for in all partitions. */
const subscriptionsMax = 10;

interface Row {
  grantId: string;
  at: Date;
  status: number | null;
  error: string | null;
}

/** Adds the first delivery to each connection whose app has one. */
export async function addFirstDeliveries(
  db: Database,
  connections: readonly Connection[],
): Promise<Connection[]> {
  const found = await readFirstDeliveries(
    db,
    connections.flatMap(({ grantId }) => grantId ?? []),
  );
  return connections.map((connection) => {
    const delivery = found.get(connection.grantId ?? '');
    return delivery === undefined ? connection : { ...connection, steps: [...connection.steps, delivery] };
  });
}

/** @returns the first attempt of a delivery in the log, by grant */
async function readFirstDeliveries(
  db: Database,
  grantIds: readonly string[],
): Promise<ReadonlyMap<string, Step>> {
  if (grantIds.length === 0) return new Map();
  const { rows } = await sql<Row>`
    select distinct on (s.grant_id) s.grant_id as "grantId", a.started_at as at, a.status, a.error
    from unnest(${uuidArray([...grantIds])}::uuid[]) as given (grant_id)
    cross join lateral (
      select grant_id, lane from subscriptions
      where grant_id = given.grant_id and state <> 'ended' order by created_at, id limit ${subscriptionsMax}::int) s
    cross join lateral (
      select started_at, status, error from attempts
      where attempts.lane = s.lane and sequence in (
        select sequence from attempts where attempts.lane = s.lane order by sequence limit 1)
      order by started_at limit 1) a
    order by s.grant_id, a.started_at`.execute(db);
  return new Map(rows.map((row) => [row.grantId, stepOf(row)]));
}

function stepOf({ at, status, error }: Row): Step {
  const isDelivered = status !== null && status >= 200 && status < 300;
  const outcome = status === null ? `failed (${error ?? 'no response'})` : `got the status ${status}`;
  const remedy = ' Expected 2xx. Read the delivery log of the subscription.';
  return {
    name: 'delivery',
    at: at.toISOString(),
    outcome: isDelivered ? 'ok' : 'refused',
    error: isDelivered ? null : 'delivery-failed',
    explanation: `The first POST to the subscription’s URL ${outcome}.${isDelivered ? '' : remedy}`,
    request: null,
  };
}
