/**
 * Compiles schemas of request bodies. Small bodies get all their errors at once. Of large ones only the first is looked for:
 * collecting the errors of a megabyte of wrong values would stop all other requests of this thread meanwhile.
 */

import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv';
import addFormats from 'ajv-formats';
import type { TSchema } from 'typebox';
import { errorsMax, escapePointer, type ValidationError } from './problem.ts';
import { errorCode, hasWords, mustBe } from './schema.ts';
import { readTime } from './time.ts';

/** Size of a body up to which all errors are collected: its values plus the characters of its names. */
const collectedSizeMax = 2_000;

/** JSON bodies have types, so nothing is converted. The schemas are the server's, or of a platform that was checked. */
const options = { coerceTypes: false, strict: false, verbose: true, validateSchema: false };
const filling = validators({ useDefaults: true });
const checking = validators({ useDefaults: false });

function validators(defaults: { useDefaults: boolean }) {
  return {
    first: withFormats(new Ajv({ ...options, ...defaults, allErrors: false })),
    every: withFormats(new Ajv({ ...options, ...defaults, allErrors: true })),
  };
}

/** Fills in defaults, unless it was compiled without, and returns the errors of a value, at most `errorsMax` and one for each place; none if it is valid. */
export type BodySchema = (value: unknown) => ValidationError[];

export function compileBodySchema(schema: TSchema, { useDefaults = true } = {}): BodySchema {
  const { first: firstError, every: everyError } = useDefaults ? filling : checking;
  // Compiled when first needed: all of them together take half of the time that a server needs to start. Most never see an invalid body.
  let find: ValidateFunction | undefined;
  let collect: ValidateFunction | undefined;
  return (value) => {
    find ??= firstError.compile(schema);
    if (find(value)) return [];
    const first = find.errors ?? [];
    if (!isCollected(value)) return toValidationErrors(first);
    collect ??= everyError.compile(schema);
    collect(value);
    return toValidationErrors(collect.errors ?? first);
  };
}

/** Converts errors of Ajv. The pointer of a missing or unknown member names the member itself. */
function toValidationErrors(found: readonly ErrorObject[]): ValidationError[] {
  const errors = new Map<string, ValidationError>();
  for (const error of withoutBranches(found)) {
    const { pointer, message } = describeError(error);
    if (errors.size === errorsMax) break;
    if (errors.has(pointer)) continue;
    const code = errorCode(error.parentSchema);
    errors.set(pointer, { pointer, message, ...(code === undefined ? {} : { code }) });
  }
  return [...errors.values()];
}

/**
 * If no alternative of a union fits, one error remains for the value where words describe the union or nothing is known below the
 * value. Otherwise the errors below the value remain. Ajv reports the errors of the alternatives just before that of their union, so each is
 * looked at once for each union around it: to compare all with all took a tenth of a second for a filter with four thousand wrong values.
 */
function withoutBranches(found: readonly ErrorObject[]): readonly ErrorObject[] {
  const kept: ErrorObject[] = [];
  for (const error of found) {
    if (error.keyword !== 'anyOf') {
      kept.push(error);
      continue;
    }
    let first = kept.length;
    while (first > 0 && isIn(kept[first - 1] as ErrorObject, error)) first -= 1;
    const below = kept.splice(first).filter((each) => isBelow(each, error));
    if (below.length === 0 || hasWords(error.parentSchema)) kept.push(error);
    else for (const each of below) kept.push(each);
  }
  return kept;
}

function isIn({ schemaPath, instancePath }: ErrorObject, union: ErrorObject): boolean {
  return schemaPath.startsWith(`${union.schemaPath}/`) && instancePath.startsWith(union.instancePath);
}

/** Whether an error of an alternative is about a part of the value, or a member that it lacks or should not have. */
function isBelow(error: ErrorObject, { instancePath }: ErrorObject): boolean {
  return error.instancePath !== instancePath || error.keyword === 'required' || namesMember(error);
}

function namesMember({ params }: ErrorObject): boolean {
  return params.additionalProperty !== undefined || params.propertyName !== undefined;
}

function describeError({ instancePath, params, keyword, parentSchema }: ErrorObject): {
  pointer: string;
  message: string;
} {
  const below = (name: string) => `${instancePath}/${escapePointer(name)}`;
  if (keyword === 'required') return { pointer: below(params.missingProperty), message: 'is required' };
  if (keyword === 'additionalProperties') {
    return { pointer: below(params.additionalProperty), message: 'is not a known property' };
  }
  if (keyword === 'propertyNames') {
    return { pointer: below(params.propertyName), message: 'is not a valid name' };
  }
  return { pointer: instancePath, message: mustBe(parentSchema as TSchema) };
}

/** Whether all errors of a body are looked for, and not only the first. */
export function isCollected(value: unknown): boolean {
  return sizeOf(value, collectedSizeMax) <= collectedSizeMax;
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

/** Adds the formats of values that the server stores. */
export function withFormats(ajv: Ajv): Ajv {
  // The package is CommonJS: the types know its function only as `default`.
  addFormats.default(ajv);
  ajv.addFormat('date-time', (text) => readTime(text) !== undefined);
  // Without `urn:uuid:`, which PostgreSQL refuses (RFC 9562 section 4).
  ajv.addFormat('uuid', /^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$/i);
  // Parsed by what uses it.
  ajv.addFormat('iri', true);
  return ajv;
}
