/** Bodies against schemas: compiled once at start, every fault reported with its place. */

import { Ajv, type ErrorObject } from 'ajv';
import addFormats from 'ajv-formats';
import type { TSchema } from 'typebox';
import { toBodyFault } from '../http/errors.ts';
import { type BodyFault, bodyProblem, Problem } from '../http/problem.ts';
import { isKeepableTime } from './column.ts';
import type { Field } from './resource_type.ts';

const ajv = new Ajv({ allErrors: true, coerceTypes: false, useDefaults: true, strict: false });
addFormats.default(ajv);

/** Faults of a body reported at most. */
const faultsMax = 100;

/** Fills in defaults. */
export type BodyCheck = (body: unknown) => Record<string, unknown>;

/**
 * @param fields those that the schema may name
 * @returns a function that gives the body back, defaults filled in, or throws Problem 400 for none and 422 for a
 *   wrong one
 */
export function bodyCheck(schema: TSchema, fields: readonly Field[]): BodyCheck {
  const validate = ajv.compile(schema);
  const times = fields.filter((field) => field.column === 'timestamptz');
  const integers = fields.filter((field) => field.column === 'bigint');
  return (body) => {
    if (body === undefined) throw new Problem(400, 'A body is required.', { code: 'no-body' });
    if (!validate(body)) throw bodyProblem((validate.errors ?? []).slice(0, faultsMax).map(toFault));
    const values = body as Record<string, unknown>;
    const faults: BodyFault[] = times
      .filter(({ name }) => typeof values[name] === 'string' && !isKeepableTime(values[name]))
      .map(({ name }) => ({ pointer: `/${name}`, message: 'is not a time in the years 1 to 9999' }));
    for (const { name } of integers) {
      // JSON Schema calls 1e300 an integer. Past these a number is not the one that was written any more.
      if (typeof values[name] !== 'number' || Number.isSafeInteger(values[name])) continue;
      faults.push({ pointer: `/${name}`, message: 'is not a whole number between -(2^53 - 1) and 2^53 - 1' });
    }
    if (faults.length > 0) throw bodyProblem(faults);
    return values;
  };
}

const fieldChecks = new WeakMap<Field, (value: unknown) => boolean>();

/** Whether a field may have a value. */
export function fits(field: Field, value: unknown): boolean {
  let check = fieldChecks.get(field);
  if (check === undefined) {
    check = ajv.compile(field.schema);
    fieldChecks.set(field, check);
  }
  return check(value);
}

function toFault(error: ErrorObject) {
  return toBodyFault(error as Parameters<typeof toBodyFault>[0]);
}
