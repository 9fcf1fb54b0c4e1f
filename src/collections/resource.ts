/**
 * A resource: its row, who may see it, and what it looks like in an answer.
 */

import { type RawBuilder, sql } from 'kysely';
import { isId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Principal } from '../grants/principal.ts';
import { httpDate, type Validators } from '../http/conditional.ts';
import { Problem } from '../http/problem.ts';
import { fromColumn } from './column.ts';
import { identifier, readableText } from './literal.ts';
import { type Conditions, isChangeable, type ResourceType } from './resource_type.ts';

/** A row of a collection's table. */
export interface Row {
  id: string;
  author: string;
  version: string;
  created_at: Date;
  updated_at?: Date;
  /** Of a sub-collection: the resource that it belongs to. */
  parent_id?: string;
  [field: string]: unknown;
}

/** A row with what decides about it: of a sub-collection, the parent's owner. */
export type OwnedRow = Row & { _owner: string };

/** The columns of a type's table, for `select` and `returning`. */
export function columnList(type: ResourceType, alias = ''): RawBuilder<unknown> {
  return cached(columnLists, type, alias, () => {
    const prefix = alias === '' ? '' : `${alias}.`;
    return sql.raw(
      columnNames(type)
        .map((name) => prefix + identifier(name))
        .join(', '),
    );
  });
}

/** The condition that a resource of others is one that may be read. */
export function readableByAll(type: ResourceType, alias = ''): RawBuilder<unknown> {
  return cached(readables, type, alias, () => sql.raw(`(${readableText(type.readable, alias)})`));
}

export function tableOf(type: ResourceType): RawBuilder<unknown> {
  return cached(tables, type, '', () => sql.raw(identifier(type.table)));
}

type Cache = WeakMap<ResourceType, Map<string, RawBuilder<unknown>>>;
const columnLists: Cache = new WeakMap();
const readables: Cache = new WeakMap();
const tables: Cache = new WeakMap();

/** These parts of statements never change: they are made once. */
function cached(cache: Cache, type: ResourceType, key: string, make: () => RawBuilder<unknown>) {
  const known = cache.get(type) ?? new Map<string, RawBuilder<unknown>>();
  cache.set(type, known);
  const made = known.get(key) ?? make();
  known.set(key, made);
  return made;
}

function columnNames(type: ResourceType): string[] {
  return [
    'id',
    ...(type.parent === null ? [] : ['parent_id']),
    'author',
    'version',
    'created_at',
    ...(isChangeable(type) ? ['updated_at'] : []),
    ...type.fields.map((field) => field.name),
  ];
}

/**
 * A resource that the principal may see; undefined for all others, whether they exist or not.
 * @param parentId of a sub-collection's resource
 */
export async function findVisible(
  db: Database | Transaction,
  type: ResourceType,
  principal: Principal,
  id: string,
  parentId?: string,
): Promise<OwnedRow | undefined> {
  if (!isId(id) || (parentId !== undefined && !isId(parentId))) return undefined;
  const { accountId } = principal;
  if (type.parent === null) {
    const { rows } = await sql<OwnedRow>`
      select ${columnList(type)}, author as _owner from ${tableOf(type)}
      where id = ${id} and (author = ${accountId} or ${readableByAll(type)})`.execute(db);
    return rows[0];
  }
  const { rows } = await sql<OwnedRow>`
    select ${columnList(type, 'c')}, p.author as _owner
      from ${tableOf(type)} c join ${tableOf(type.parent)} p on p.id = c.parent_id
     where c.id = ${id} and p.id = ${parentId}
       and (p.author = ${accountId} or ${readableByAll(type.parent, 'p')})`.execute(db);
  return rows[0];
}

/** What one may not see is not there. */
export function notFound(type: ResourceType): Problem {
  return new Problem(404, `There is no such ${type.item}.`, { code: 'not-found' });
}

/** The members of a resource without its links: what an event carries. */
export function toMembers(type: ResourceType, row: Row): Record<string, unknown> {
  const members: Record<string, unknown> = { id: row.id };
  for (const field of type.fields) members[field.name] = fromColumn(field.column, row[field.name]);
  members.author = row.author;
  members.created_at = row.created_at.toISOString();
  if (row.updated_at !== undefined) members.updated_at = row.updated_at.toISOString();
  return members;
}

/**
 * A resource as an answer shows it to this principal.
 * @param fields the members wanted beside `id` and `_links`; undefined for all
 */
export function toResource(
  type: ResourceType,
  row: Row,
  principal: Principal,
  fields?: ReadonlySet<string>,
): Record<string, unknown> {
  const members = toMembers(type, row);
  if (fields !== undefined) {
    for (const name of Object.keys(members)) {
      if (name !== 'id' && !fields.has(name)) delete members[name];
    }
  }
  members._links = linksOf(type, row, principal);
  return members;
}

interface Link {
  href: string;
  method?: string;
}

function linksOf(type: ResourceType, row: Row, principal: Principal): Record<string, Link> {
  const self = pathOf(type, row);
  const links: Record<string, Link> = { self: { href: self } };
  if (type.parent !== null) {
    links[type.parent.item] = { href: `/${type.parent.name}/${row.parent_id}` };
  }
  for (const child of type.children) links[child.name] = { href: `${self}/${child.name}` };
  const mayWrite = principal.scopes.has(type.writeScope) && row.author === principal.accountId;
  for (const action of type.actions) {
    if (mayWrite && matches(action.guard, row)) {
      links[action.name] = { href: `${self}/${action.name}`, method: 'POST' };
    }
  }
  return links;
}

/** Whether a row meets conditions. */
export function matches(conditions: Conditions, row: Row): boolean {
  return conditions.every(({ field, values }) => values.includes(fromColumn(field.column, row[field.name])));
}

export function pathOf(type: ResourceType, row: Pick<Row, 'id' | 'parent_id'>): string {
  return type.parent === null
    ? `/${type.name}/${row.id}`
    : `/${type.parent.name}/${row.parent_id}/${type.name}/${row.id}`;
}

/**
 * The entity tag: the row's version, the declaration's fingerprint, and what makes this representation another than
 * those shown to other tokens: the actions that are linked, the members that were asked for.
 */
export function validatorsOf(
  type: ResourceType,
  row: Row,
  principal: Principal,
  fields?: ReadonlySet<string>,
): Validators {
  const actions = Object.values(linksOf(type, row, principal)).filter((link) => link.method !== undefined);
  const parts = [
    versionTag(type, row),
    actions.length.toString(36),
    ...(fields === undefined ? [] : [[...fields].sort().join('-')]),
  ];
  return { etag: `"${parts.join('.')}"`, modifiedAt: row.updated_at ?? row.created_at };
}

function versionTag(type: ResourceType, row: Row): string {
  return `${BigInt(row.version).toString(36)}.${type.fingerprint}`;
}

/** Whether a tag is of any representation of the row as it is: what `If-Match` asks before a change. */
export function isTagOf(type: ResourceType, row: Row): (tag: string) => boolean {
  const start = `"${versionTag(type, row)}.`;
  return (tag) => tag.startsWith(start);
}

/** Headers of an answer that shows one resource. */
export function validatorHeaders({ etag, modifiedAt }: Validators): Record<string, string> {
  return { etag, 'last-modified': httpDate(modifiedAt) };
}
