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
import { columnList, type Row, readableByAll, tableOf, toMembers } from './resource.ts';
import { isChangeable, type ResourceType } from './resource_type.ts';

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

/** A resource that its author may create. */
export interface AllowedResource extends NewResource {
  /** Who its events belong to. */
  owner: string;
}

/**
 * Finds the owner of each resource, and locks the parents. Waits for no deletion, because others share the statement.
 * @returns in order: the author, or in a sub-collection the parent's owner. Undefined if the author cannot read the parent or add to it, or if
 *   another transaction deletes the parent.
 */
export async function findOwners(
  tx: Transaction,
  type: ResourceType,
  given: readonly NewResource[],
): Promise<(string | undefined)[]> {
  if (type.parent === null || given.length === 0) return given.map(({ author }) => author);
  const mayAdd = type.createdBy === 'owner' ? sql`false` : readableByAll(type.parent, 'p');
  // The foreign key locks these rows anyway, but would wait for a deletion.
  const { rows } = await sql<{ id: string; author: string; isOpen: boolean }>`
    select p.id, p.author, ${mayAdd} as "isOpen" from ${tableOf(type.parent)} p
    where p.id = any(${given.map(({ parentId }) => parentId)}::uuid[]) for key share skip locked`.execute(tx);
  const parents = new Map(rows.map((row) => [row.id, row]));
  return given.map(({ author, parentId }) => {
    const parent = parents.get((parentId as string).toLowerCase());
    return parent?.isOpen || parent?.author === author ? parent?.author : undefined;
  });
}

/**
 * Waits for no deletion either.
 * @returns the rows in order, and their events. A row is undefined if another transaction deletes the author.
 */
export async function createResources(
  tx: Transaction,
  type: ResourceType,
  given: readonly AllowedResource[],
): Promise<{ rows: (Row | undefined)[]; events: StoredEvent[] }> {
  const ids = given.map(() => newId());
  const inserted = await insertResources(tx, type, ids, given);
  const byId = new Map(inserted.map((row) => [row.id, row]));
  const rows = ids.map((id) => byId.get(id));
  if (!type.events.has('created') || inserted.length === 0) return { rows, events: [] };
  const events = await insertEvents(
    tx,
    rows.flatMap((row, index) => {
      const resource = given[index];
      if (row === undefined || resource === undefined) return [];
      const body = eventBody(type, toMembers(type, row), row.parent_id ?? row.id);
      return {
        id: newId(),
        accountId: resource.owner,
        kind: `${type.item}.created`,
        version: type.bodies.version ?? null,
        body: Buffer.from(JSON.stringify(body)),
        traceparent: resource.traceparent,
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
  given: readonly AllowedResource[],
): Promise<Row[]> {
  const standard: GivenColumn[] = [
    { name: 'id', column: 'uuid', values: ids },
    { name: 'author', column: 'uuid', values: given.map(({ author }) => author) },
  ];
  if (type.parent !== null) {
    standard.push({ name: 'parent_id', column: 'uuid', values: given.map(({ parentId }) => parentId) });
  }
  const columns = [
    ...standard,
    ...type.fields.map(({ name, column, default: initial }) => ({
      name,
      column,
      values: given.map(({ values }) =>
        toColumn(column, Object.hasOwn(values, name) ? values[name] : initial),
      ),
    })),
  ];
  const times = isChangeable(type) ? ['created_at', 'updated_at'] : ['created_at'];
  const createdAt = new Date();
  // Use generated names, because field names could clash with others in the statement.
  const names = fragment(columns.map((_column, index) => `c${index}`).join(', '));
  const arrays = sql.join(columns.map(({ column, values }) => sql`${values}::${fragment(column)}[]`));
  const targets = [...columns.map(({ name }) => name), ...times].map(identifier).join(', ');
  // The foreign key locks the authors anyway, but would wait for a deletion.
  const { rows } = await sql<Row>`
    with writer as materialized (
      select id from accounts where id = any(${given.map(({ author }) => author)}::uuid[]) for key share skip locked
    )
    insert into ${tableOf(type)} (${fragment(targets)})
    select ${names}, ${sql.join(times.map(() => sql`${createdAt}::timestamptz`))}
    from unnest(${arrays}) as given (${names})
    join writer on writer.id = given.c1
    returning ${columnList(type)}`.execute(tx);
  return rows;
}

interface GivenColumn {
  name: string;
  column: ColumnType;
  values: readonly unknown[];
}

/** A parameter with an explicit type, where PostgreSQL cannot infer it. */
export function typedParameter(column: ColumnType, value: unknown) {
  return sql`${toColumn(column, value)}::${fragment(column)}`;
}
