/** Reads request bodies that are JSON objects with known properties. */

import { escapePointer } from './json.ts';
import { bodyProblem, type ValidationError } from './problem.ts';

/**
 * @param known the names of the properties that the body may have
 * @param errors receives an error for each unknown property
 * @throws Problem 422 if the body is not an object
 */
export function readJsonObject(
  body: unknown,
  known: readonly string[],
  errors: ValidationError[],
): Record<string, unknown> {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw bodyProblem([{ pointer: '', message: 'must be an object' }]);
  }
  for (const name of Object.keys(body)) {
    if (!known.includes(name)) {
      errors.push({ pointer: `/${escapePointer(name)}`, message: 'is not a known property' });
    }
  }
  return body as Record<string, unknown>;
}
