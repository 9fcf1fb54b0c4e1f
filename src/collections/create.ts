/** POST on a collection or sub-collection: a new resource and the event that tells of it, in one transaction. */

import { sql } from 'kysely';
import { isId, newId } from '../crypto/ids.ts';
import type { Transaction } from '../database/database.ts';
import { appendEvent } from '../events/event.ts';
import type { Principal } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import { type ColumnType, toColumn } from './column.ts';
import { eventBody } from './kinds.ts';
import { fragment, identifier } from './literal.ts';
import {
  columnList,
  findVisible,
  notFound,
  type OwnedRow,
  readableByAll,
  tableOf,
  toMembers,
} from './resource.ts';
import type { Field, ResourceType } from './resource_type.ts';

/**
 * @param values checked, defaults filled in
 * @param parentId of a sub-collection
 * @throws Problem 404 when the parent may not be seen, 403 when one may not add to it
 */
export async function createResource(
  tx: Transaction,
  type: ResourceType,
  principal: Principal,
  values: Readonly<Record<string, unknown>>,
  parentId?: string,
): Promise<OwnedRow> {
  const author = requireUser(principal);
  const row =
    type.parent === null
      ? await insertResource(tx, type, author, values)
      : await insertChild(tx, type, type.parent, principal, author, values, parentId ?? '');
  if (type.events.has('created')) {
    const body = eventBody(type, toMembers(type, row), row.parent_id ?? row.id);
    await appendEvent(tx, { accountId: row._owner, kind: `${type.item}.created`, body });
  }
  return row;
}

/** @throws Problem 403 for a client that speaks for itself: a resource has an author */
export function requireUser(principal: Principal): string {
  if (principal.accountId !== null) return principal.accountId;
  throw new Problem(403, 'This needs the token of a user; the client speaks for itself.', {
    code: 'user-required',
  });
}

async function insertResource(
  tx: Transaction,
  type: ResourceType,
  author: string,
  values: Readonly<Record<string, unknown>>,
): Promise<OwnedRow> {
  const createdAt = new Date();
  const { rows } = await sql<OwnedRow>`
    insert into ${tableOf(type)} (id, author, created_at, updated_at, ${fieldList(type.fields)})
    values (${newId()}, ${author}, ${createdAt}, ${createdAt}, ${valueList(type.fields, values)})
    returning ${columnList(type)}, author as _owner`.execute(tx);
  return rows[0] as OwnedRow;
}

/** One statement says both: the parent is there to be seen, and what is added belongs to it. */
async function insertChild(
  tx: Transaction,
  type: ResourceType,
  parent: ResourceType,
  principal: Principal,
  author: string,
  values: Readonly<Record<string, unknown>>,
  parentId: string,
): Promise<OwnedRow> {
  if (!isId(parentId)) throw notFound(parent);
  const mayAdd =
    type.createdBy === 'owner'
      ? sql`p.author = ${author}`
      : sql`(p.author = ${author} or ${readableByAll(parent, 'p')})`;
  const { rows } = await sql<OwnedRow>`
    with parent as (
      select id, author from ${tableOf(parent)} p where p.id = ${parentId} and ${mayAdd} for key share
    ),
    added as (
      insert into ${tableOf(type)} (id, parent_id, author, created_at, ${fieldList(type.fields)})
      select ${newId()}, parent.id, ${author}, ${new Date()}, ${valueList(type.fields, values)} from parent
      returning ${columnList(type)}
    )
    select added.*, parent.author as _owner from added, parent`.execute(tx);
  const row = rows[0];
  if (row !== undefined) return row;
  if ((await findVisible(tx, parent, principal, parentId)) === undefined) throw notFound(parent);
  throw new Problem(403, `Only the owner of the ${parent.item} may add ${type.name} to it.`, {
    code: 'not-owner',
  });
}

export function fieldList(fields: readonly Field[]) {
  return fragment(fields.map((field) => identifier(field.name)).join(', '));
}

function valueList(fields: readonly Field[], values: Readonly<Record<string, unknown>>) {
  return sql.join(
    fields.map((field) =>
      typed(field.column, Object.hasOwn(values, field.name) ? values[field.name] : field.default),
    ),
  );
}

/** A parameter with its type said, for statements that do not show it by the place alone. */
export function typed(column: ColumnType, value: unknown) {
  return sql`${toColumn(column, value)}::${fragment(column)}`;
}
