/**
 * Query parameters of one resource or a list: `limit`, `after`, `sort`, `fields`, `expand` and the declared filters. Unknown
 * parameters are rejected rather than ignored, because a misspelled filter must not return everything.
 */

import { isId } from '../crypto/ids.ts';
import { isStorable } from '../http/json.ts';
import { errorsMax, Problem, type ValidationError } from '../http/problem.ts';
import { isStorableTime } from './column.ts';
import { type Expansion, type Field, isChangeable, type ResourceType } from './resource_type.ts';
import { isValidValue } from './validation.ts';

export const pageSizeDefault = 50;
export const pageSizeMax = 200;

/** Newest first. */
export const orderDefault = '-created_at';

/** Which parts of a resource the client wants. */
export interface ResourceQuery {
  /** Members beside `id` and `_links`; undefined for all. */
  fields: ReadonlySet<string> | undefined;
  /** Links to embed. */
  expand: readonly Expansion[];
}

export interface ListQuery extends ResourceQuery {
  limit: number;
  after: string | undefined;
  /** Name of the sort, with a leading `-` for descending. */
  order: string;
  filters: { name: string; value: unknown }[];
}

/** @throws Problem 400 with a pointer to each invalid parameter */
export function readListQuery(type: ResourceType, query: unknown): ListQuery {
  const errors: ValidationError[] = [];
  const known = ['limit', 'after', 'sort', ...shapeParameters(type), ...type.filters];
  const parameters = readParameters(query, known, errors);
  const sorts = ['created_at', ...type.sorts];
  const limit = parameters.get('limit') ?? String(pageSizeDefault);
  if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1 || Number(limit) > pageSizeMax) {
    errors.push({ pointer: '/limit', message: `must be an integer from 1 to ${pageSizeMax}` });
  }
  const order = parameters.get('sort') ?? orderDefault;
  if (!sorts.includes(order.replace(/^-/, ''))) {
    errors.push({
      pointer: '/sort',
      message: `must be one of ${[...new Set(sorts)].join(', ')}, with a leading - for descending`,
    });
  }
  const filters = type.filters.flatMap((name) => {
    const text = parameters.get(name);
    if (text === undefined) return [];
    const field = type.fields.find((candidate) => candidate.name === name);
    const value = field === undefined ? readId(text) : readFitting(field, text);
    if (value === undefined)
      errors.push({ pointer: `/${name}`, message: 'is not a valid value of this field' });
    return [{ name, value }];
  });
  const shape = readShape(type, parameters, errors);
  if (errors.length > 0) throw invalid(errors);
  return { limit: Number(limit), after: parameters.get('after'), order, filters, ...shape };
}

/** @throws Problem 400 */
export function readResourceQuery(type: ResourceType, query: unknown): ResourceQuery {
  const errors: ValidationError[] = [];
  const shape = readShape(type, readParameters(query, shapeParameters(type), errors), errors);
  if (errors.length > 0) throw invalid(errors);
  return shape;
}

/**
 * Rejects query parameters of a request that changes something, because ignoring one could surprise the client.
 * @throws Problem 400
 */
export function rejectQuery(query: unknown): void {
  const errors: ValidationError[] = [];
  readParameters(query, [], errors);
  if (errors.length > 0) throw invalid(errors);
}

/** Parameters that select the shown parts of a resource. */
function shapeParameters(type: ResourceType): string[] {
  return type.expansions.length === 0 ? ['fields'] : ['fields', 'expand'];
}

function readShape(
  type: ResourceType,
  parameters: ReadonlyMap<string, string>,
  errors: ValidationError[],
): ResourceQuery {
  return {
    fields: readFields(type, parameters.get('fields'), errors),
    expand: readExpand(type, parameters.get('expand'), errors),
  };
}

function invalid(errors: ValidationError[]): Problem {
  return new Problem(400, 'The query is not valid.', { code: 'invalid-query', errors });
}

function readParameters(
  query: unknown,
  known: readonly string[],
  errors: ValidationError[],
): Map<string, string> {
  const parameters = new Map<string, string>();
  const choice =
    known.length === 0 ? 'is not a parameter of this request' : `is not one of ${known.join(', ')}`;
  for (const [name, value] of Object.entries(query as Record<string, string | string[]>)) {
    if (errors.length >= errorsMax) break;
    const pointer = `/${name.slice(0, 100)}`;
    if (!known.includes(name)) errors.push({ pointer, message: choice });
    else if (typeof value !== 'string') errors.push({ pointer, message: 'must be given only once' });
    else if (!isStorable(value)) errors.push({ pointer, message: 'contains a NUL character' });
    else parameters.set(name, value);
  }
  return parameters;
}

/** Members that `?fields=` may name. `id` and `_links` are always included. */
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
  errors: ValidationError[],
): ReadonlySet<string> | undefined {
  if (text === undefined) return undefined;
  const names = readNames(text);
  names.delete('id');
  checkNames('/fields', names, selectableMembers(type), errors);
  return names;
}

function readExpand(type: ResourceType, text: string | undefined, errors: ValidationError[]): Expansion[] {
  if (text === undefined) return [];
  const names = readNames(text);
  const known = type.expansions.map(({ name }) => name);
  checkNames('/expand', names, known, errors);
  return type.expansions.filter(({ name }) => names.has(name));
}

function readNames(text: string): Set<string> {
  return new Set(text.split(',').map(withoutSpaces));
}

/** A loop instead of a pattern: a pattern for spaces at the end takes quadratic time for spaces elsewhere. */
function withoutSpaces(text: string): string {
  let [from, to] = [0, text.length];
  while (from < to && text[from] === ' ') from += 1;
  while (to > from && text[to - 1] === ' ') to -= 1;
  return text.slice(from, to);
}

function checkNames(
  pointer: string,
  names: ReadonlySet<string>,
  known: readonly string[],
  errors: ValidationError[],
): void {
  if (names.difference(new Set(known)).size === 0) return;
  errors.push({ pointer, message: `must be a comma-separated list of ${known.join(', ')}` });
}

function readId(text: string): string | undefined {
  return isId(text.toLowerCase()) ? text.toLowerCase() : undefined;
}

/** Reads a field's value from text. Returns undefined if the field's schema excludes it. */
function readFitting(field: Field, text: string): unknown {
  const value = readValue(field, text);
  return value !== undefined && isValidValue(field, value) ? value : undefined;
}

/** Reads a field's value from text. Returns undefined if the field's column cannot hold it. */
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
      return /^\d{4}-\d\d-\d\d[Tt ]/.test(text) && isStorableTime(text)
        ? new Date(text).toISOString()
        : undefined;
    default:
      return text;
  }
}
