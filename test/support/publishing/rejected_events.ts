/** Events that are published by SQL and rejected. */

import { sql } from 'kysely';
import type { TestServer } from '../servers/server.ts';
import { until } from '../webhooks/apps.ts';

/** Publishes a body that is invalid for its kind, and waits until it is rejected. */
export async function reject(
  { db }: Pick<TestServer, 'db'>,
  account: string,
  body: unknown,
  kind = 'push',
): Promise<{ id: string; eventId: string }> {
  const { rows: published } = await sql<{ event: string }>`
    select publish(${kind}, ${account}, ${JSON.stringify(body)}::jsonb) as event`.execute(db);
  const eventId = published[0]?.event as string;
  const { rows } = await until(
    () => sql<{ id: string }>`select id from rejected_events where event_id = ${eventId}`.execute(db),
    (found) => found.rows.length > 0,
  );
  return { id: rows[0]?.id as string, eventId };
}
