/**
 * PUT, PATCH, DELETE and actions on the user's own resources. One transaction locks the row, checks the request's conditions,
 * changes the row and writes the event. The lock serializes concurrent changes.
 */

import { isDeepStrictEqual } from 'node:util';
import { sql } from 'kysely';
import { isId } from '../crypto/ids.ts';
import { type Database, type Transaction, varied } from '../database/database.ts';
import { appendEvent } from '../events/event.ts';
import type { Principal } from '../grants/principal.ts';
import { type ConditionHeaders, checkPreconditions } from '../http/conditional.ts';
import { Problem } from '../http/problem.ts';
import { fromColumn } from './column.ts';
import { requireUser, typedParameter } from './create.ts';
import { now } from './declaration.ts';
import { eventBody } from './kinds.ts';
import { fragment, identifier } from './literal.ts';
import { isTagOf } from './representation.ts';
import {
  columnList,
  findVisible,
  matches,
  modifiedAt,
  notFound,
  type OwnedRow,
  tableOf,
  toMembers,
} from './resource.ts';
import type { Field, ResourceAction, ResourceType } from './resource_type.ts';

/**
 * Locks the principal's own resource until the transaction ends, and checks the request's conditions.
 * @throws Problem 404 if the principal cannot read it, 403 if another user owns it, 412 if a condition fails
 */
export async function lockOwnResource(
  tx: Transaction,
  type: ResourceType,
  principal: Principal,
  id: string,
  headers: ConditionHeaders,
): Promise<OwnedRow> {
  if (!isId(id)) throw notFound(type);
  const { rows } = await sql<OwnedRow>`
    select ${columnList(type)}, author as _owner from ${tableOf(type)}
    where id = ${id} and author = ${principal.accountId} for no key update`.execute(tx);
  const row = rows[0];
  if (row === undefined) {
    if ((await findVisible(tx, type, principal, id)) === undefined) throw notFound(type);
    requireUser(principal);
    throw new Problem(403, `Only its owner may change this ${type.item}.`, { code: 'not-owner' });
  }
  checkPreconditions(headers, modifiedAt(row), isTagOf(type, row));
  return row;
}

/**
 * Updates the fields of a locked resource whose values differ. Does nothing if none differs.
 * @returns the current row, and whether it changed
 */
export async function updateResource(
  tx: Transaction,
  type: ResourceType,
  row: OwnedRow,
  values: Readonly<Record<string, unknown>>,
): Promise<{ row: OwnedRow; changed: boolean }> {
  const differing = type.fields.filter(
    (field) =>
      Object.hasOwn(values, field.name) &&
      !isDeepStrictEqual(comparable(field, values[field.name]), fromColumn(field.column, row[field.name])),
  );
  if (differing.length === 0) return { row, changed: false };
  const after = await writeFields(tx, type, row, differing, values);
  if (type.events.has('updated')) await publish(tx, type, after, `${type.item}.updated`);
  return { row: after, changed: true };
}

/** Normalizes a value to the form of responses: times, ids and zero have several spellings. */
function comparable(field: Field, value: unknown): unknown {
  if (typeof value !== 'string') return JSON.parse(JSON.stringify(value));
  if (field.column === 'timestamptz') return new Date(value).toISOString();
  return field.column === 'uuid' ? value.toLowerCase() : value;
}

/** @throws Problem 409 if the state of the resource does not allow the action */
export async function performAction(
  tx: Transaction,
  type: ResourceType,
  row: OwnedRow,
  action: ResourceAction,
  input: Readonly<Record<string, unknown>>,
): Promise<OwnedRow> {
  if (!matches(action.guard, row)) throw new Problem(409, action.refusal, { code: 'wrong-state' });
  const changedAt = new Date();
  const values: Record<string, unknown> = { ...input };
  for (const { field, value } of action.change)
    values[field.name] = value === now ? changedAt.toISOString() : value;
  const fields = type.fields.filter((field) => Object.hasOwn(values, field.name));
  const after = await writeFields(tx, type, row, fields, values, changedAt);
  if (action.emits !== null) await publish(tx, type, after, action.emits);
  return after;
}

async function writeFields(
  tx: Transaction,
  type: ResourceType,
  row: OwnedRow,
  fields: readonly Field[],
  values: Readonly<Record<string, unknown>>,
  changedAt = new Date(),
): Promise<OwnedRow> {
  const assignments = fields.map(
    (field) => sql`${fragment(identifier(field.name))} = ${typedParameter(field.column, values[field.name])}`,
  );
  // If the clock was set back, keep the later time.
  const { rows } = await sql<OwnedRow>`${varied}
    update ${tableOf(type)}
       set version = version + 1, updated_at = greatest(${changedAt}::timestamptz, updated_at), ${sql.join(assignments)}
     where id = ${row.id} and version = ${row.version}
    returning ${columnList(type)}, author as _owner`.execute(tx);
  return rows[0] as OwnedRow;
}

/** A deletion with more resources in a sub-collection takes some 10 ms or more. */
const manyChildren = 1_000;

/** Whether a resource has very many resources in a sub-collection, so that its deletion takes long. */
export async function hasManyChildren(db: Database, type: ResourceType, id: string): Promise<boolean> {
  if (!isId(id)) return false;
  for (const child of type.children) {
    const { rows } = await sql`
      select from ${tableOf(child)} where parent_id = ${id} offset ${manyChildren}::int limit 1`.execute(db);
    if (rows.length > 0) return true;
  }
  return false;
}

/** Deletes a locked resource, with its sub-collections. */
export async function deleteResource(tx: Transaction, type: ResourceType, row: OwnedRow): Promise<void> {
  await sql`delete from ${tableOf(type)} where id = ${row.id}`.execute(tx);
  if (type.events.has('deleted')) await publish(tx, type, row, `${type.item}.deleted`);
}

async function publish(tx: Transaction, type: ResourceType, row: OwnedRow, kind: string): Promise<void> {
  const body = eventBody(type, toMembers(type, row), row.id);
  await appendEvent(tx, { accountId: row._owner, kind, version: type.bodies.version ?? null, body });
}
