/**
 * A resource as an answer shows it: its members, its links, its validators. How a type's resources are written is
 * worked out once, and each is then put together as JSON text: a list of 50 costs half of what it costs to make
 * objects of rows and text of objects.
 */

import type { Principal } from '../grants/principal.ts';
import { httpDate, type Validators } from '../http/conditional.ts';
import { type ColumnType, toTime } from './column.ts';
import { matches, modifiedAt, type Row } from './resource.ts';
import { isChangeable, type ResourceAction, type ResourceType } from './resource_type.ts';

/** Writes a resource as JSON. */
export type Writer = (row: Row) => string;

/** A member after the first: its text, comma, name and all. */
interface Member {
  name: string;
  write: Writer;
}

interface Shape {
  members: Member[];
  /** The links that every resource of the type has. */
  links: Writer;
  actions: { action: ResourceAction; link: Writer }[];
}

/**
 * How this principal is shown resources of a type.
 * @param fields the members wanted beside `id` and `_links`; undefined for all
 */
export function resourceWriter(
  type: ResourceType,
  principal: Principal,
  fields?: ReadonlySet<string>,
): Writer {
  const { members, links, actions } = shapeOf(type);
  const wanted = fields === undefined ? members : members.filter(({ name }) => fields.has(name));
  return (row) => {
    let text = `{"id":"${row.id}"`;
    for (const { write } of wanted) text += write(row);
    text += links(row);
    if (mayAct(type, row, principal)) {
      for (const { action, link } of actions) if (matches(action.guard, row)) text += link(row);
    }
    return `${text}}}`;
  };
}

/** The members of a JSON array. Added up, as an array of texts to join would have each of them copied once more. */
export function writeAll(rows: readonly Row[], write: Writer): string {
  let text = '';
  let divider = '';
  for (const row of rows) {
    text += divider + write(row);
    divider = ',';
  }
  return text;
}

export function pathOf(type: ResourceType, row: Pick<Row, 'id' | 'parent_id'>): string {
  return type.parent === null
    ? `/${type.name}/${row.id}`
    : `/${type.parent.name}/${row.parent_id}/${type.name}/${row.id}`;
}

const shapes = new WeakMap<ResourceType, Shape>();

function shapeOf(type: ResourceType): Shape {
  const known = shapes.get(type);
  if (known !== undefined) return known;
  const shape: Shape = {
    members: [
      ...type.fields.map(({ name, column }) => member(name, column)),
      member('author', 'uuid'),
      member('created_at', 'timestamptz'),
      ...(isChangeable(type) ? [member('updated_at', 'timestamptz')] : []),
    ],
    links: linksWriter(type),
    actions: type.actions.map((action) => ({ action, link: actionWriter(type, action) })),
  };
  shapes.set(type, shape);
  return shape;
}

function member(name: string, column: ColumnType): Member {
  const start = `,${JSON.stringify(name)}:`;
  const write = writers[column];
  return {
    name,
    write: (row) => {
      const value = row[name];
      return start + (value === null ? 'null' : write(value));
    },
  };
}

/** What `JSON.stringify` makes of what `fromColumn` gives, for values that are not null. */
const writers: Readonly<Record<ColumnType, (value: unknown) => string>> = {
  text: JSON.stringify,
  // Nothing in these needs an escape.
  uuid: (value) => `"${value}"`,
  timestamptz: (value) => `"${toTime(value as string)}"`,
  bigint: (value) => String(Number(value)),
  'double precision': JSON.stringify,
  boolean: String,
  jsonb: JSON.stringify,
};

/** Names and ids need no escape: names of declarations are words, ids are UUIDs. */
function linksWriter(type: ResourceType): Writer {
  return (row) => {
    const self = pathOf(type, row);
    let text = `,"_links":{"self":{"href":"${self}"}`;
    if (type.parent !== null) {
      text += `,"${type.parent.item}":{"href":"/${type.parent.name}/${row.parent_id}"}`;
    }
    for (const { name } of type.children) text += `,"${name}":{"href":"${self}/${name}"}`;
    return text;
  };
}

function actionWriter(type: ResourceType, { name }: ResourceAction): Writer {
  return (row) => `,"${name}":{"href":"${pathOf(type, row)}/${name}","method":"POST"}`;
}

/** Whether links to actions are shown at all: to the owner, where the token may write. */
function mayAct(type: ResourceType, row: Row, principal: Principal): boolean {
  return row.author === principal.accountId && principal.scopes.has(type.writeScope);
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
  const actions = mayAct(type, row, principal)
    ? type.actions.filter((action) => matches(action.guard, row)).length
    : 0;
  const selection = fields === undefined ? '' : `.${[...fields].sort().join('-')}`;
  return {
    etag: `"${versionTag(type, row)}.${actions.toString(36)}${selection}"`,
    modifiedAt: modifiedAt(row),
  };
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
export function validatorHeaders({ etag, modifiedAt: time }: Validators): Record<string, string> {
  return { etag, 'last-modified': httpDate(time) };
}
