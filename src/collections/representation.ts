/**
 * The JSON of a resource: its members, links and validators. The fixed parts of the text are prepared once per type. Each
 * resource is then a concatenation of these parts and its cells (cells.ts).
 */

import { createHash } from 'node:crypto';
import type { Principal } from '../grants/principal.ts';
import { httpDate, type Validators } from '../http/conditional.ts';
import { type Cells, cellsOf } from './cells.ts';
import { matches, modifiedAt, type Row } from './resource.ts';
import { isChangeable, type ResourceType } from './resource_type.ts';

/**
 * Writes one resource of a page as JSON.
 * @param more members to add after the links, with a leading comma
 */
export type Writer = (index: number, more?: string) => string;

interface Shape {
  /** Members after the id, in order: the column, and the text before its value. */
  members: readonly { name: string; start: string }[];
  actions: readonly { name: string; guard: Guard }[];
}

/** The guard of an action: by column, the JSON texts that it allows. */
type Guard = readonly { name: string; texts: ReadonlySet<string> }[];

/**
 * Returns a writer for the resources of a page, as this principal sees them.
 * @param fields the members to include beside `id` and `_links`; undefined for all
 * @param withoutLinks leaves out `_links`
 */
export function resourceWriter(
  type: ResourceType,
  principal: Principal,
  { ids, parentIds, columns }: Cells,
  fields?: ReadonlySet<string>,
  withoutLinks = false,
): Writer {
  const { members, actions } = shapeOf(type);
  const column = (name: string) => columns.get(name) as readonly string[];
  const wanted = members
    .filter(({ name }) => fields === undefined || fields.has(name))
    .map(({ name, start }) => ({ start, cells: column(name) }));
  const guarded = actions.map(({ name, guard }) => ({
    name,
    guard: guard.map((each) => ({ cells: column(each.name), texts: each.texts })),
  }));
  const owners = principal.scopes.has(type.writeScope) ? column('author') : [];
  const self = `"${principal.accountId}"`;
  return (index, more = '') => {
    const id = ids[index] as string;
    const parent_id = parentIds[index] as string;
    const path = pathOf(type, { id, parent_id });
    // Names from declarations and UUIDs need no escaping.
    let text = `{"id":"${id}"`;
    for (const { start, cells } of wanted) text += start + cells[index];
    if (withoutLinks) return `${text}}`;
    text += `${linksStart}{"self":{"href":"${path}"}`;
    if (type.parent !== null)
      text += `,"${type.parent.item}":{"href":"${pathOf(type.parent, { id: parent_id })}"}`;
    for (const { name } of type.children) text += `,"${name}":{"href":"${path}/${name}"}`;
    if (owners[index] !== self) return `${text}}${more}}`;
    for (const { name, guard } of guarded) {
      if (!guard.every(({ cells, texts }) => texts.has(cells[index] as string))) continue;
      text += `,"${name}":{"href":"${path}/${name}","method":"POST"}`;
    }
    return `${text}}${more}}`;
  };
}

/** The last member of a resource without embedded ones. Within a string, its quotes would be escaped. */
const linksStart = ',"_links":';

/** Removes the links of a single resource without embedded ones. @param text as `writeResource` made it */
export function cutLinks(text: string): string {
  return `${text.slice(0, text.lastIndexOf(linksStart))}}`;
}

/** Writes a single row. */
export function writeResource(
  type: ResourceType,
  principal: Principal,
  row: Row,
  fields?: ReadonlySet<string>,
  more?: string,
): string {
  return resourceWriter(type, principal, cellsOf(type, row), fields)(0, more);
}

/** Writes the elements of a JSON array. Concatenation copies less than joining an array of texts. */
export function writeAll(count: number, write: (index: number) => string): string {
  let text = '';
  for (let index = 0; index < count; index++) text += index === 0 ? write(index) : `,${write(index)}`;
  return text;
}

/** Characters of a page. The result of a tool may be as long (src/mcp/tools/tool_call.ts). */
const pageCharactersMax = 4_000_000;

/**
 * Writes the elements of a page until its text is long. A single longer element is written alone.
 * @returns the text, and how many elements it has
 */
export function writeItems(
  count: number,
  write: (index: number) => string,
): { items: string; shown: number } {
  let items = '';
  for (let index = 0; index < count; index++) {
    const item = write(index);
    if (index > 0 && items.length + item.length > pageCharactersMax) return { items, shown: index };
    items += index === 0 ? item : `,${item}`;
  }
  return { items, shown: count };
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
  const names = [
    ...type.fields.map(({ name }) => name),
    'author',
    'created_at',
    ...(isChangeable(type) ? ['updated_at'] : []),
  ];
  const shape: Shape = {
    members: names.map((name) => ({ name, start: `,${JSON.stringify(name)}:` })),
    actions: type.actions.map(({ name, guard }) => ({
      name,
      guard: guard.map(({ field, values }) => ({
        name: field.name,
        texts: new Set(values.map((value) => JSON.stringify(value))),
      })),
    })),
  };
  shapes.set(type, shape);
  return shape;
}

/** Links to actions are shown to the owner, if the token has the write scope. */
function mayAct(type: ResourceType, row: Row, principal: Principal): boolean {
  return row.author === principal.accountId && principal.scopes.has(type.writeScope);
}

/**
 * Builds the entity tag from the row's version, the declaration's fingerprint, and everything else that varies between
 * representations: linked actions, selected members and embedded resources. Embedded resources change independently of the
 * row, so the tag contains a digest of them and there is no modification time.
 * @param embedded the text of embedded resources; empty for none
 */
export function validatorsOf(
  type: ResourceType,
  row: Row,
  principal: Principal,
  fields?: ReadonlySet<string>,
  embedded = '',
): Validators {
  const actions = mayAct(type, row, principal)
    ? type.actions.filter((action) => matches(action.guard, row)).length
    : 0;
  const selection = fields === undefined ? '' : `.${[...fields].sort().join('-')}`;
  const digest = embedded === '' ? '' : `~${createHash('sha256').update(embedded).digest('base64url')}`;
  return {
    etag: `"${versionTag(type, row)}.${actions.toString(36)}${selection}${digest}"`,
    modifiedAt: embedded === '' ? modifiedAt(row) : null,
  };
}

function versionTag(type: ResourceType, row: Row): string {
  return `${BigInt(row.version).toString(36)}.${type.fingerprint}`;
}

/** Whether a tag belongs to any representation of the current row, for `If-Match` before a change. */
export function isTagOf(type: ResourceType, row: Row): (tag: string) => boolean {
  const start = `"${versionTag(type, row)}.`;
  return (tag) => tag.startsWith(start);
}

/** Response headers of a single resource. */
export function validatorHeaders({ etag, modifiedAt: time }: Validators): Record<string, string> {
  return time === null ? { etag } : { etag, 'last-modified': httpDate(time) };
}
