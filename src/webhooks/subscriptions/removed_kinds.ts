/**
 * Ends agents' subscriptions to kinds that were removed from the platform. During an upgrade, nodes with and without a kind run
 * together, and an upgrade may be rolled back. So each node says which kinds it has, and a kind is removed when no node has said so
 * for 15 minutes. Owns the table `declared_kinds`.
 *
 *   declared → (declared again) → not declared for 15 minutes → its subscriptions end, and their agents are told → forgotten
 */

import { sql } from 'kysely';
import { textArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import { endAgents } from './agent_subscription.ts';

const graceMinutes = 15;
/** Seconds between two updates of a kind, whichever node makes them. */
const declareSeconds = 60;

const isRemoved = sql`seen_at < clock_timestamp() - make_interval(mins => ${sql.lit(graceMinutes)})`;

/** Says that this node has these kinds. Call it at least once a minute. */
export async function declareKinds(db: Database, names: readonly string[]): Promise<void> {
  await sql`
    insert into declared_kinds (name, seen_at)
    -- In one order, so that nodes do not deadlock.
    select name, clock_timestamp() from unnest(${textArray([...names].sort())}::text[]) as name
    on conflict (name) do update set seen_at = excluded.seen_at
    where declared_kinds.seen_at < excluded.seen_at - make_interval(secs => ${declareSeconds}::int)`.execute(
    db,
  );
}

/** Ends subscriptions to removed kinds, at most 500. Several nodes can do so at once. @returns how many ended */
export async function endRemovedKinds(db: Database): Promise<number> {
  const { rows } = await sql<{ name: string }>`
    select name from declared_kinds where ${isRemoved} order by name limit 100`.execute(db);
  if (rows.length === 0) return 0;
  const names = textArray(rows.map(({ name }) => name));
  return db.transaction().execute(async (tx) => {
    // Again, because a node may have declared one meanwhile.
    const which = sql`name in (select name from declared_kinds where name = any(${names}::text[]) and ${isRemoved})`;
    const ended = await endAgents(tx, which, 'removed', sql`skip locked`);
    if (ended === 0) {
      await sql`
        delete from declared_kinds d where name = any(${names}::text[]) and ${isRemoved}
          -- One that was locked ends later.
          and not exists (select from agent_subscriptions a where a.name = d.name and a.ended_at is null)`.execute(
        tx,
      );
    }
    return ended;
  });
}
