/**
 * Reads the new field values from a PUT or PATCH body. The body may contain server-set members if their values are unchanged,
 * so that a client can read a resource, change one member and send all of it back.
 */

import { isDeepStrictEqual } from 'node:util';
import { bodyProblem, errorsMax, escapePointer, Problem, type ValidationError } from '../http/problem.ts';
import { applyJsonPatch } from './json_patch.ts';
import { type OwnedRow, toMembers } from './resource.ts';
import type { ResourceType } from './resource_type.ts';
import type { BodyCheck } from './validation.ts';

type Members = Record<string, unknown>;

/**
 * PUT: every writable field gets the body's value, or its default.
 * @param check validates the writable fields
 * @throws Problem 422 for an invalid body, or one that changes a server-set member
 */
export function replacedValues(type: ResourceType, row: OwnedRow, body: unknown, check: BodyCheck): Members {
  if (!isObject(body)) return check(body);
  const current = toMembers(type, row);
  const errors: ValidationError[] = [];
  const values: Members = {};
  const settable = new Set(type.fields.filter((field) => field.set === 'client').map((field) => field.name));
  for (const [name, value] of Object.entries(
    withFewOthers(body, new Set([...Object.keys(current), ...settable])),
  )) {
    const isFixed = Object.hasOwn(current, name) && !settable.has(name);
    // The server generates these members, and they are stale after any change.
    if (name === '_links' || name === '_embedded' || name === 'updated_at') continue;
    if (!isFixed) values[name] = value;
    else if (!isDeepStrictEqual(value, current[name])) {
      errors.push({ pointer: `/${escapePointer(name)}`, message: 'cannot be changed', code: 'read-only' });
    }
  }
  if (errors.length > 0) throw bodyProblem(errors);
  return check(values);
}

/** PATCH with a merge patch (RFC 7396). The result is treated like a PUT body. */
export function mergedValues(type: ResourceType, row: OwnedRow, patch: unknown, check: BodyCheck): Members {
  if (patch === undefined) throw new Problem(400, 'A body is required.', { code: 'no-body' });
  if (!isObject(patch)) {
    throw bodyProblem([
      { pointer: '', message: 'must be an object, because only members of a resource can change' },
    ]);
  }
  const current = toMembers(type, row);
  const names = new Set([...Object.keys(current), ...type.fields.map(({ name }) => name)]);
  const merged = mergePatch(current, withFewOthers(patch, names)) as Members;
  for (const name of names) {
    if (!Object.hasOwn(patch, name) || patch[name] !== null || !Object.hasOwn(current, name)) continue;
    const field = type.fields.find((candidate) => candidate.name === name);
    // Null removes a member. A nullable or read-only member becomes null instead.
    if (field === undefined || field.set !== 'client' || field.nullable) merged[name] = null;
  }
  return replacedValues(type, row, merged, check);
}

/**
 * PATCH with a JSON Patch (RFC 6902): all operations or none. The result is treated like a PUT body.
 * @throws Problem 422 for an impossible operation, 409 for a failed `test`
 */
export function patchedValues(type: ResourceType, row: OwnedRow, patch: unknown, check: BodyCheck): Members {
  if (patch === undefined) throw new Problem(400, 'A body is required.', { code: 'no-body' });
  const document = toMembers(type, row);
  applyJsonPatch(document, patch);
  const errors = Object.keys(toMembers(type, row))
    .filter(
      (name) =>
        !Object.hasOwn(document, name) &&
        type.fields.every((field) => field.name !== name || field.set !== 'client'),
    )
    .map((name) => ({ pointer: `/${name}`, message: 'cannot be removed', code: 'read-only' as const }));
  if (errors.length > 0) throw bodyProblem(errors);
  return replacedValues(type, row, document, check);
}

/**
 * Returns the members with these names, and of all others as many as a response reports. To look at tens of thousands of others again and
 * again would take the server thread longer than to parse them, which has turns (http/body_turns.ts).
 */
function withFewOthers(given: Members, names: ReadonlySet<string>): Members {
  const found: Members = {};
  let others = 0;
  // Objects of JSON inherit nothing that is enumerable.
  for (const name in given) {
    if (!names.has(name)) {
      others += 1;
      if (others > errorsMax) continue;
    }
    found[name] = given[name];
  }
  return found;
}

/** The algorithm of RFC 7396 section 2. */
function mergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const base: Members = isObject(target) ? target : {};
  const result: Members = {};
  for (const [name, value] of Object.entries(base)) {
    if (!Object.hasOwn(patch, name)) result[name] = value;
    else if (patch[name] !== null) result[name] = mergePatch(value, patch[name]);
  }
  for (const [name, value] of Object.entries(patch)) {
    if (value !== null && !Object.hasOwn(base, name)) result[name] = mergePatch(undefined, value);
  }
  return result;
}

function isObject(value: unknown): value is Members {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
