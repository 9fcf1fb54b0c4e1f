/**
 * POST on a collection or sub-collection: inserts resources and their events in one transaction, which several requests
 * share (creations.ts).
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Transaction } from '../database/database.ts';
import { accountDeleted, insertEvents, type StoredEvent } from '../events/store.ts';
import type { Principal } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import { type ColumnType, toColumn } from './column.ts';
import { eventBody } from './kinds.ts';
import { fragment, identifier } from './literal.ts';
import { columnList, type OwnedRow, readableByAll, tableOf, toMembers } from './resource.ts';
import type { Field, ResourceType } from './resource_type.ts';

/** A resource to create. */
export interface NewResource {
  author: string;
  /** Validated, with defaults. */
  values: Readonly<Record<string, unknown>>;
  /** Null outside sub-collections. */
  parentId: string | null;
  /** The span of the request; null if it is not recorded. */
  traceparent: string | null;
}

/**
 * Waits for no deletion, because others share the statement.
 * @returns the rows in order, and their events. A row is undefined if its author cannot read the parent or add to it, or if another
 *   transaction deletes the parent or the author.
 */
export async function createResources(
  tx: Transaction,
  type: ResourceType,
  given: readonly NewResource[],
): Promise<{ rows: (OwnedRow | undefined)[]; events: StoredEvent[] }> {
  const ids = given.map(() => newId());
  const inserted = await insertResources(tx, type, ids, given);
  const byId = new Map(inserted.map((row) => [row.id, row]));
  const rows = ids.map((id) => byId.get(id));
  if (!type.events.has('created') || inserted.length === 0) return { rows, events: [] };
  const events = await insertEvents(
    tx,
    rows.flatMap((row, index) => {
      if (row === undefined) return [];
      const body = eventBody(type, toMembers(type, row), row.parent_id ?? row.id);
      return {
        id: newId(),
        accountId: row._owner,
        kind: `${type.item}.created`,
        version: type.bodies.version ?? null,
        body: Buffer.from(JSON.stringify(body)),
        traceparent: given[index]?.traceparent ?? null,
      };
    }),
  );
  if (events === undefined) throw accountDeleted();
  return { rows, events };
}

/** @throws Problem 403 if the client acts for itself; a resource needs an author */
export function requireUser(principal: Principal): string {
  if (principal.accountId !== null) return principal.accountId;
  throw new Problem(403, 'This request needs a token that acts for a user.', {
    code: 'user-required',
  });
}

async function insertResources(
  tx: Transaction,
  type: ResourceType,
  ids: readonly string[],
  given: readonly NewResource[],
): Promise<OwnedRow[]> {
  const columns = [
    { column: 'uuid' as const, values: ids },
    { column: 'uuid' as const, values: given.map(({ author }) => author) },
    ...type.fields.map((field) => ({
      column: field.column,
      values: given.map(({ values }) =>
        toColumn(field.column, Object.hasOwn(values, field.name) ? values[field.name] : field.default),
      ),
    })),
  ];
  // Use generated names, because field names could clash with others in the statement.
  const names = columns.map((_column, index) => `c${index}`);
  const arrays = sql.join(columns.map(({ column, values }) => sql`${values}::${fragment(column)}[]`));
  const fields = names.slice(2);
  const createdAt = new Date();
  // The foreign key locks these rows anyway, but would wait for a deletion.
  const writer = sql`writer as materialized (
      select id from accounts where id = any(${given.map(({ author }) => author)}::uuid[]) for key share skip locked
    )`;
  if (type.parent === null) {
    const { rows } = await sql<OwnedRow>`
      with ${writer}
      insert into ${tableOf(type)} (id, author, created_at, updated_at, ${fieldList(type.fields)})
      select c0, c1, ${createdAt}::timestamptz, ${createdAt}::timestamptz, ${fragment(fields.join(', '))}
      from unnest(${arrays}) as given (${fragment(names.join(', '))})
      join writer on writer.id = given.c1
      returning ${columnList(type)}, author as _owner`.execute(tx);
    return rows;
  }
  return insertChildren(tx, type, type.parent, { names, fields, arrays, writer, createdAt, given });
}

interface Unnested {
  names: readonly string[];
  fields: readonly string[];
  arrays: ReturnType<typeof sql.join>;
  writer: ReturnType<typeof sql.join>;
  createdAt: Date;
  given: readonly NewResource[];
}

/** One statement checks that the author may add to the parent, and inserts. */
async function insertChildren(
  tx: Transaction,
  type: ResourceType,
  parent: ResourceType,
  { names, fields, arrays, writer, createdAt, given }: Unnested,
): Promise<OwnedRow[]> {
  const parents = given.map(({ parentId }) => parentId);
  const mayAdd = type.createdBy === 'owner' ? sql`false` : readableByAll(parent, 'p');
  const { rows } = await sql<OwnedRow>`
    with ${writer},
    parent as materialized (
      select p.id, p.author, ${mayAdd} as is_open from ${tableOf(parent)} p
      where p.id = any(${parents}::uuid[]) for key share skip locked
    ),
    added as (
      insert into ${tableOf(type)} (id, parent_id, author, created_at, ${fieldList(type.fields)})
      select c0, parent.id, c1, ${createdAt}::timestamptz, ${fragment(fields.join(', '))}
      from unnest(${arrays}, ${parents}::uuid[]) as given (${fragment([...names, '_parent'].join(', '))})
      join parent on parent.id = given._parent
      join writer on writer.id = given.c1
      where parent.author = given.c1 or parent.is_open
      returning ${columnList(type)}
    )
    select added.*, parent.author as _owner from added join parent on parent.id = added.parent_id`.execute(
    tx,
  );
  return rows;
}

function fieldList(fields: readonly Field[]) {
  return fragment(fields.map((field) => identifier(field.name)).join(', '));
}

/** A parameter with an explicit type, where PostgreSQL cannot infer it. */
export function typedParameter(column: ColumnType, value: unknown) {
  return sql`${toColumn(column, value)}::${fragment(column)}`;
}
