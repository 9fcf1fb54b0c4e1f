/**
 * Filters of subscriptions: conditions on the body of an event. A filter is checked against the schemas of its kinds once, when it is
 * set, and compiled to an SQL/JSON path, which PostgreSQL evaluates for each event (webhooks/fan_out).
 *
 *   { "all" | "any": [ { "path": "/amount", "gte": 100 }, { "not": { "path": "/state", "in": ["draft"] } } ] }
 *
 * A condition on a value that the body does not have is false, and `not` of it is true.
 */

import type { TSchema } from 'typebox';
import type { ProblemCode } from '../http/problem_codes.ts';
import { isIndex, type JsonType, typesAt } from './schema_types.ts';

export const conditionsMax = 10;
export const choicesMax = 100;
export const pathCharactersMax = 256;
export const textCharactersMax = 1_000;
/** Maximum bytes of a filter as JSON: the time of an evaluation grows with its size. Fan-out counts it (`filter_weight`). */
export const filterBytesMax = 65_536;

export type Scalar = string | number | boolean | null;

export const comparisons = ['gt', 'gte', 'lt', 'lte'] as const;
export const operators = ['eq', 'in', 'prefix', 'exists', ...comparisons] as const;
export type Operator = (typeof operators)[number];

/** One of the operators beside the path. */
export type Condition = { path: string } & Partial<Record<Operator, Scalar | Scalar[]>>;
export type Negatable = Condition | { not: Condition };
export type Filter = { all: Negatable[] } | { any: Negatable[] };

/** A problem, with the names and indices that lead to it in the filter. */
export interface FilterError {
  place: (string | number)[];
  message: string;
  code: FilterCode;
}

type FilterCode = Extract<ProblemCode, `${string}filter${string}`>;

interface FilteredKind {
  name: string;
  schema: TSchema;
}

export function conditionsOf(filter: Filter): Negatable[] {
  return 'all' in filter ? filter.all : filter.any;
}

/**
 * Checks what the schema of a request cannot say: that each kind's body has the value, of a type that fits.
 * @param filter has the right shape
 * @param kinds those that the subscription gets
 */
export function filterErrors(filter: Filter, kinds: readonly FilteredKind[]): FilterError[] {
  const list = 'all' in filter ? 'all' : 'any';
  return conditionsOf(filter).flatMap((each, index) => {
    const place = 'not' in each ? [list, index, 'not'] : [list, index];
    const condition = 'not' in each ? each.not : each;
    return conditionErrors(condition, kinds).map((error) => ({
      ...error,
      place: [...place, ...error.place],
    }));
  });
}

function conditionErrors(condition: Condition, kinds: readonly FilteredKind[]): FilterError[] {
  const steps = stepsOf(condition.path);
  if (steps === undefined) {
    const message = 'is not a JSON pointer, such as /article/title';
    return [{ place: ['path'], message, code: 'invalid-filter-path' }];
  }
  const [operator, operand] = operandOf(condition);
  const values = Array.isArray(operand) ? operand : [operand];
  for (const [index, value] of values.entries()) {
    const place = Array.isArray(operand) ? [operator, index] : [operator];
    if (typeof value === 'string' && (!value.isWellFormed() || value.includes('\0'))) {
      const message = 'has characters that JSON in the database cannot have';
      return [{ place, message, code: 'invalid-filter' }];
    }
  }
  for (const { name, schema } of kinds) {
    const types = typesAt(schema, steps);
    if (types.size === 0) {
      const message = `does not exist in the body of ${name}`;
      return [{ place: ['path'], message, code: 'unknown-filter-path' }];
    }
    if (operator === 'exists') continue;
    for (const [index, value] of values.entries()) {
      const place = Array.isArray(operand) ? [operator, index] : [operator];
      const message = mismatch(operator, value, types);
      if (message === undefined) continue;
      return [{ place, message: `${message} in the body of ${name}`, code: 'filter-type-mismatch' }];
    }
  }
  return [];
}

function mismatch(operator: Operator, value: Scalar, types: ReadonlySet<JsonType>): string | undefined {
  const type = value === null ? 'null' : (typeof value as JsonType);
  const shown = [...types].join(' or ');
  if (!types.has(type)) return `is a ${type}, but the value is ${shown}`;
  if (operator === 'prefix' && type !== 'string') return 'must be a string, as the value must be';
  const isOrdered = type === 'string' || type === 'number';
  return (comparisons as readonly Operator[]).includes(operator) && !isOrdered
    ? 'must be a string or a number, as the value must be'
    : undefined;
}

function operandOf(condition: Condition): [Operator, Scalar | Scalar[]] {
  const operator = operators.find((name) => condition[name] !== undefined) as Operator;
  return [operator, condition[operator] as Scalar | Scalar[]];
}

/** The reference tokens of a JSON pointer (RFC 6901). @returns undefined if it is none */
export function stepsOf(pointer: string): string[] | undefined {
  if (!/^(?:\/(?:[^~/]|~[01])*)+$/u.test(pointer) || !pointer.isWellFormed() || pointer.includes('\0')) {
    return undefined;
  }
  return pointer
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/**
 * Compiles a filter to an SQL/JSON path predicate, in strict mode: arrays are not unwrapped, and a missing value is an error, which
 * makes the condition unknown and with it false. A condition reads its value once and compares it with each choice, because the path to
 * a value can cost more than a comparison.
 * @param filter without errors
 */
export function filterPath(filter: Filter): string {
  const [list, operator] = 'all' in filter ? [filter.all, '&&'] : [filter.any, '||'];
  return `strict ${list.map(predicate).join(` ${operator} `)}`;
}

function predicate(each: Negatable): string {
  const isNegated = 'not' in each;
  const condition = isNegated ? each.not : each;
  const place = placeOf(condition);
  const [operator, operand] = operandOf(condition);
  // Only a missing value makes a condition unknown.
  const isMissing = `(exists(${place})) is unknown`;
  if (operator === 'exists') return operand === isNegated ? `(${isMissing})` : `(exists(${place}))`;
  const isMet = `exists(${place} ? (${comparison(operator, operand)}))`;
  return isNegated ? `(${isMissing} || !(${isMet}))` : `(${isMet})`;
}

/** The value is `@`. */
function comparison(operator: Exclude<Operator, 'exists'>, operand: Scalar | Scalar[]): string {
  switch (operator) {
    case 'in':
      return (operand as Scalar[]).map((value) => `@ == ${literal(value)}`).join(' || ');
    case 'prefix':
      return `@ starts with ${literal(operand as string)}`;
    default:
      return `@ ${signs[operator]} ${literal(operand as Scalar)}`;
  }
}

function placeOf({ path }: Condition): string {
  return `$${(stepsOf(path) as string[]).map(accessor).join('')}`;
}

const signs = { eq: '==', gt: '>', gte: '>=', lt: '<', lte: '<=' } as const;

function accessor(step: string): string {
  return isIndex(step) ? `[${step}]` : `.${literal(step)}`;
}

/** Texts of SQL/JSON paths are written as in JavaScript. */
function literal(value: Scalar): string {
  return JSON.stringify(value);
}
