/** Bodies against schemas: compiled once at start, every fault reported with its place. */

import { Ajv, type ErrorObject } from 'ajv';
import addFormats from 'ajv-formats';
import type { TSchema } from 'typebox';
import { toBodyFault } from '../http/errors.ts';
import { bodyProblem, Problem } from '../http/problem.ts';

const ajv = new Ajv({ allErrors: true, coerceTypes: false, useDefaults: true, strict: false });
addFormats.default(ajv);

/** Faults of a body reported at most. */
const faultsMax = 100;

/** Fills in defaults. */
export type BodyCheck = (body: unknown) => Record<string, unknown>;

/**
 * @returns a function that gives the body back, defaults filled in, or throws Problem 400 for none and 422 for a
 *   wrong one
 */
export function bodyCheck(schema: TSchema): BodyCheck {
  const validate = ajv.compile(schema);
  return (body) => {
    if (body === undefined) throw new Problem(400, 'A body is required.', { code: 'no-body' });
    if (validate(body)) return body as Record<string, unknown>;
    throw bodyProblem((validate.errors ?? []).slice(0, faultsMax).map(toFault));
  };
}

function toFault(error: ErrorObject) {
  return toBodyFault(error as Parameters<typeof toBodyFault>[0]);
}
