/**
 * Reads single resources. Concurrent requests share one statement, which checks the permission of each. Under load this saves
 * most of the fixed cost of a statement. A single request waits only for the end of the current turn of the event loop.
 */

import { sql } from 'kysely';
import { isId } from '../crypto/ids.ts';
import { asServer } from '../database/connection_user.ts';
import type { Database } from '../database/database.ts';
import type { Principal } from '../grants/principal.ts';
import { columnList, type OwnedRow, readableByAll, tableOf } from './resource.ts';
import type { ResourceType } from './resource_type.ts';

/** Limit of resources per statement. */
const batchMax = 100;

interface Wanted {
  id: string;
  parentId: string | null;
  accountId: string | null;
  resolve: (row: OwnedRow | undefined) => void;
  reject: (error: unknown) => void;
}

/** Finds a resource that the principal may read. Returns undefined otherwise, whether it exists or not. */
export type Reader = (principal: Principal, id: string, parentId?: string) => Promise<OwnedRow | undefined>;

export function createReader(db: Database, type: ResourceType): Reader {
  let waiting: Wanted[] = [];

  function flush(): void {
    const batch = waiting;
    waiting = [];
    fetchAll(db, type, batch).then(
      (rows) => {
        for (const [index, wanted] of batch.entries()) wanted.resolve(rows.get(index + 1));
      },
      (error: unknown) => {
        for (const wanted of batch) wanted.reject(error);
      },
    );
  }

  return async (principal, id, parentId) => {
    if (!isId(id) || (parentId !== undefined && !isId(parentId))) return undefined;
    return new Promise((resolve, reject) => {
      if (waiting.length === 0) setImmediate(() => asServer(flush));
      waiting.push({ id, parentId: parentId ?? null, accountId: principal.accountId, resolve, reject });
      if (waiting.length >= batchMax) asServer(flush);
    });
  };
}

/** @returns rows by their position in the batch, from 1 */
async function fetchAll(
  db: Database,
  type: ResourceType,
  batch: readonly Wanted[],
): Promise<Map<number, OwnedRow>> {
  if (batch.length === 0) return new Map();
  const ids = batch.map((wanted) => wanted.id);
  const viewers = batch.map((wanted) => wanted.accountId);
  const { rows } =
    type.parent === null
      ? await sql<OwnedRow & { _place: string }>`
          select wanted._place, ${columnList(type, 'r')}, r.author as _owner
            from unnest(${ids}::uuid[], ${viewers}::uuid[]) with ordinality as wanted (id, viewer, _place)
            join ${tableOf(type)} r on r.id = wanted.id
           where r.author = wanted.viewer or ${readableByAll(type, 'r')}`.execute(db)
      : await sql<OwnedRow & { _place: string }>`
          select wanted._place, ${columnList(type, 'r')}, p.author as _owner
            from unnest(${ids}::uuid[], ${batch.map((wanted) => wanted.parentId)}::uuid[], ${viewers}::uuid[])
                 with ordinality as wanted (id, parent_id, viewer, _place)
            join ${tableOf(type)} r on r.id = wanted.id and r.parent_id = wanted.parent_id
            join ${tableOf(type.parent)} p on p.id = r.parent_id
           where p.author = wanted.viewer or ${readableByAll(type.parent, 'p')}`.execute(db);
  return new Map(rows.map((row) => [Number(row._place), row]));
}
