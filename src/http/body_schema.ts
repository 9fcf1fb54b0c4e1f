/**
 * Compiles schemas of request bodies. Small bodies get all their errors at once. Of large ones only the first is looked for:
 * collecting the errors of a megabyte of wrong values would stop all other requests of this thread meanwhile.
 */

import { Ajv, type ErrorObject } from 'ajv';
import addFormats from 'ajv-formats';
import type { TSchema } from 'typebox';

/** Limit of reported errors. */
export const errorsMax = 100;

/** Size of a body up to which all errors are collected: its values plus the characters of its names. */
const collectedSizeMax = 10_000;

/** JSON bodies have types, so nothing is converted. */
const options = { coerceTypes: false, useDefaults: true, strict: false };
const firstError = withFormats(new Ajv({ ...options, allErrors: false }));
const everyError = withFormats(new Ajv({ ...options, allErrors: true }));

/** Whether a value is valid; fills in defaults. */
export interface BodySchema {
  (value: unknown): boolean;
  /** The errors of the last value, at most `errorsMax`; null if it was valid. */
  errors: ErrorObject[] | null;
}

export function compileBodySchema(schema: TSchema): BodySchema {
  const find = firstError.compile(schema);
  // Most schemas never see an invalid body.
  let collect: typeof find | undefined;
  const check: BodySchema = (value) => {
    check.errors = null;
    if (find(value)) return true;
    check.errors = find.errors ?? [];
    if (sizeOf(value, collectedSizeMax) > collectedSizeMax) return false;
    collect ??= everyError.compile(schema);
    collect(value);
    check.errors = (collect.errors ?? check.errors).slice(0, errorsMax);
    return false;
  };
  check.errors = null;
  return check;
}

/** Counts a body's values and the characters of its names, until the count exceeds the limit. */
function sizeOf(value: unknown, max: number): number {
  if (typeof value !== 'object' || value === null) return 1;
  let size = 1;
  if (Array.isArray(value)) {
    if (value.length > max) return value.length;
    for (const item of value) {
      size += sizeOf(item, max - size);
      if (size > max) return size;
    }
    return size;
  }
  for (const name in value) {
    size += name.length + sizeOf((value as Record<string, unknown>)[name], max - size);
    if (size > max) return size;
  }
  return size;
}

export function withFormats(ajv: Ajv): Ajv {
  // The package is CommonJS: the types know its function only as `default`.
  addFormats.default(ajv);
  return ajv;
}
