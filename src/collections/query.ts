/**
 * Parameters of a request for one resource or a list: `limit`, `after`, `sort`, `fields`, `expand` and the declared filters.
 * What is not known is refused, not passed over: a filter with a typing error must not answer with everything.
 */

import { isId } from '../crypto/ids.ts';
import { isStorable } from '../http/json.ts';
import { type BodyFault, Problem } from '../http/problem.ts';
import { isKeepableTime } from './column.ts';
import { type Expansion, type Field, isChangeable, type ResourceType } from './resource_type.ts';
import { fits } from './validation.ts';

/** Resources on a page where nothing is said, and at most. */
export const pageSizeDefault = 50;
export const pageSizeMax = 200;

/** The order of a list where nothing is said: newest first. */
export const orderDefault = '-created_at';

/** What of a resource is wanted. */
export interface ResourceQuery {
  /** Members beside `id` and `_links`; undefined for all. */
  fields: ReadonlySet<string> | undefined;
  /** What is to be embedded. */
  expand: readonly Expansion[];
}

export interface ListQuery extends ResourceQuery {
  limit: number;
  after: string | undefined;
  /** The sort's name, with `-` in front for descending. */
  order: string;
  filters: { name: string; value: unknown }[];
}

/** @throws Problem 400 with a pointer to each parameter that is wrong */
export function readListQuery(type: ResourceType, query: unknown): ListQuery {
  const faults: BodyFault[] = [];
  const known = ['limit', 'after', 'sort', ...shapeParameters(type), ...type.filters];
  const parameters = readParameters(query, known, faults);
  const sorts = ['created_at', ...type.sorts];
  const limit = parameters.get('limit') ?? String(pageSizeDefault);
  if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1 || Number(limit) > pageSizeMax) {
    faults.push({ pointer: '/limit', message: `may be a whole number from 1 to ${pageSizeMax}` });
  }
  const order = parameters.get('sort') ?? orderDefault;
  if (!sorts.includes(order.replace(/^-/, ''))) {
    faults.push({
      pointer: '/sort',
      message: `may be one of ${[...new Set(sorts)].join(', ')}, with - in front for descending`,
    });
  }
  const filters = type.filters.flatMap((name) => {
    const text = parameters.get(name);
    if (text === undefined) return [];
    const field = type.fields.find((candidate) => candidate.name === name);
    const value = field === undefined ? readId(text) : readFitting(field, text);
    if (value === undefined)
      faults.push({ pointer: `/${name}`, message: 'has a value that this field never has' });
    return [{ name, value }];
  });
  const shape = readShape(type, parameters, faults);
  if (faults.length > 0) throw invalid(faults);
  return { limit: Number(limit), after: parameters.get('after'), order, filters, ...shape };
}

/** @throws Problem 400 */
export function readResourceQuery(type: ResourceType, query: unknown): ResourceQuery {
  const faults: BodyFault[] = [];
  const shape = readShape(type, readParameters(query, shapeParameters(type), faults), faults);
  if (faults.length > 0) throw invalid(faults);
  return shape;
}

/**
 * A request that changes something has no parameters: whoever gave one expected something of it.
 * @throws Problem 400
 */
export function refuseQuery(query: unknown): void {
  const faults: BodyFault[] = [];
  readParameters(query, [], faults);
  if (faults.length > 0) throw invalid(faults);
}

/** Parameters that decide what is shown of a resource. */
function shapeParameters(type: ResourceType): string[] {
  return type.expansions.length === 0 ? ['fields'] : ['fields', 'expand'];
}

function readShape(
  type: ResourceType,
  parameters: ReadonlyMap<string, string>,
  faults: BodyFault[],
): ResourceQuery {
  return {
    fields: readFields(type, parameters.get('fields'), faults),
    expand: readExpand(type, parameters.get('expand'), faults),
  };
}

function invalid(errors: BodyFault[]): Problem {
  return new Problem(400, 'The query is not valid.', { code: 'invalid-query', errors });
}

function readParameters(query: unknown, known: readonly string[], faults: BodyFault[]): Map<string, string> {
  const parameters = new Map<string, string>();
  const choice = known.length === 0 ? 'is not known here' : `is not one of ${known.join(', ')}`;
  for (const [name, value] of Object.entries(query as Record<string, string | string[]>)) {
    const pointer = `/${name.slice(0, 100)}`;
    if (!known.includes(name)) faults.push({ pointer, message: choice });
    else if (typeof value !== 'string') faults.push({ pointer, message: 'is given more than once' });
    else if (!isStorable(value)) faults.push({ pointer, message: 'has a NUL character in it' });
    else parameters.set(name, value);
  }
  return parameters;
}

/** Members that `?fields=` may name beside `id` and `_links`, which are always there. */
export function selectableMembers(type: ResourceType): string[] {
  return [
    ...type.fields.map((field) => field.name),
    'author',
    'created_at',
    ...(isChangeable(type) ? ['updated_at'] : []),
  ];
}

function readFields(
  type: ResourceType,
  text: string | undefined,
  faults: BodyFault[],
): ReadonlySet<string> | undefined {
  if (text === undefined) return undefined;
  const names = readNames(text);
  names.delete('id');
  checkNames('/fields', names, selectableMembers(type), faults);
  return names;
}

function readExpand(type: ResourceType, text: string | undefined, faults: BodyFault[]): Expansion[] {
  if (text === undefined) return [];
  const names = readNames(text);
  const known = type.expansions.map(({ name }) => name);
  checkNames('/expand', names, known, faults);
  return type.expansions.filter(({ name }) => names.has(name));
}

function readNames(text: string): Set<string> {
  return new Set(text.split(',').map((name) => name.replace(/^ +| +$/g, '')));
}

function checkNames(
  pointer: string,
  names: ReadonlySet<string>,
  known: readonly string[],
  faults: BodyFault[],
): void {
  if (names.difference(new Set(known)).size === 0) return;
  faults.push({ pointer, message: `may name ${known.join(', ')}, divided by commas` });
}

function readId(text: string): string | undefined {
  return isId(text.toLowerCase()) ? text.toLowerCase() : undefined;
}

/** A field's value from text; undefined where the field never has it. */
function readFitting(field: Field, text: string): unknown {
  const value = readValue(field, text);
  return value !== undefined && fits(field, value) ? value : undefined;
}

/** A field's value from text; undefined where the field's column could not have it. */
function readValue(field: Field, text: string): unknown {
  switch (field.column) {
    case 'uuid':
      return readId(text);
    case 'bigint':
      return /^-?\d{1,15}$/.test(text) ? Number(text) : undefined;
    case 'double precision':
      return /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(text) && Number.isFinite(Number(text))
        ? Number(text)
        : undefined;
    case 'boolean':
      return text === 'true' ? true : text === 'false' ? false : undefined;
    case 'timestamptz':
      return /^\d{4}-\d\d-\d\d[Tt ]/.test(text) && isKeepableTime(text)
        ? new Date(text).toISOString()
        : undefined;
    default:
      return text;
  }
}
