/** Validates bodies against schemas. Schemas are compiled once at start, and every error is reported with its place. */

import type { TSchema } from 'typebox';
import { type BodySchema, compileBodySchema } from '../http/body_schema.ts';
import { bodyProblem, Problem, type ValidationError } from '../http/problem.ts';
import { isStorableTime } from './column.ts';
import type { Field } from './resource_type.ts';

/** Validates a body and fills in defaults. */
export type BodyCheck = (body: unknown) => Record<string, unknown>;

/**
 * @param fields the fields that the schema may name
 * @returns a function that returns the body with defaults, or throws Problem 400 for a missing and 422 for an invalid body
 */
export function bodyCheck(schema: TSchema, fields: readonly Field[]): BodyCheck {
  const validate = compileBodySchema(schema);
  const times = fields.filter((field) => field.column === 'timestamptz');
  const integers = fields.filter((field) => field.column === 'bigint');
  return (body) => {
    if (body === undefined) throw new Problem(400, 'A body is required.', { code: 'no-body' });
    const invalid = validate(body);
    if (invalid.length > 0) throw bodyProblem(invalid);
    const values = body as Record<string, unknown>;
    const errors: ValidationError[] = times
      .filter(({ name }) => typeof values[name] === 'string' && !isStorableTime(values[name]))
      .map(({ name }) => ({ pointer: `/${name}`, message: 'is not a time in the years 1 to 9999' }));
    for (const { name } of integers) {
      // For JSON Schema 1e300 is an integer. JavaScript represents integers exactly only up to 2^53 - 1.
      if (typeof values[name] !== 'number' || Number.isSafeInteger(values[name])) continue;
      errors.push({ pointer: `/${name}`, message: 'is not an integer between -(2^53 - 1) and 2^53 - 1' });
    }
    if (errors.length > 0) throw bodyProblem(errors);
    return values;
  };
}

const fieldChecks = new WeakMap<Field, BodySchema>();

/** Whether the value is valid for the field. */
export function isValidValue(field: Field, value: unknown): boolean {
  let check = fieldChecks.get(field);
  if (check === undefined) {
    check = compileBodySchema(field.schema);
    fieldChecks.set(field, check);
  }
  return check(value).length === 0;
}
