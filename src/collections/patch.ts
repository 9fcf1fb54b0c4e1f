/**
 * What a PUT or PATCH body asks of a resource: the values that its fields are to have. Members that the server sets
 * may be sent back as they are, so that a client can change one member of what it got and send the whole.
 */

import { isDeepStrictEqual } from 'node:util';
import { applyPatch, type Operation } from 'rfc6902';
import { escapePointer } from '../http/json.ts';
import { type BodyFault, bodyProblem, Problem } from '../http/problem.ts';
import { type OwnedRow, toMembers } from './resource.ts';
import type { ResourceType } from './resource_type.ts';
import type { BodyCheck } from './validation.ts';

type Members = Record<string, unknown>;

/**
 * PUT: every field that the client may set has the body's value, or its default.
 * @param check the schema of what a client may set
 * @throws Problem 422 for a body that does not fit, or sets what only the server sets
 */
export function replacedValues(type: ResourceType, row: OwnedRow, body: unknown, check: BodyCheck): Members {
  if (!isObject(body)) return check(body);
  const current = toMembers(type, row);
  const faults: BodyFault[] = [];
  const values: Members = {};
  const settable = new Set(type.fields.filter((field) => field.set === 'client').map((field) => field.name));
  for (const [name, value] of Object.entries(body)) {
    const isFixed = Object.hasOwn(current, name) && !settable.has(name);
    // These are the server's own account of the resource, and old as soon as somebody changes it.
    if (name === '_links' || name === '_embedded' || name === 'updated_at') continue;
    if (!isFixed) values[name] = value;
    else if (!isDeepStrictEqual(value, current[name])) {
      faults.push({ pointer: `/${escapePointer(name)}`, message: 'cannot be changed', code: 'read-only' });
    }
  }
  if (faults.length > 0) throw bodyProblem(faults);
  return check(values);
}

/** PATCH with a merge patch (RFC 7396): what comes out is as if it had been PUT. */
export function mergedValues(type: ResourceType, row: OwnedRow, patch: unknown, check: BodyCheck): Members {
  if (patch === undefined) throw new Problem(400, 'A body is required.', { code: 'no-body' });
  if (!isObject(patch)) {
    throw bodyProblem([
      { pointer: '', message: 'must be an object: of a resource only members can be changed' },
    ]);
  }
  const current = toMembers(type, row);
  const merged = mergePatch(current, patch) as Members;
  for (const [name, value] of Object.entries(patch)) {
    if (value !== null || !Object.hasOwn(current, name)) continue;
    const field = type.fields.find((candidate) => candidate.name === name);
    // Null removes; of a member that may be null, and of one that cannot go, that means to have it null.
    if (field === undefined || field.set !== 'client' || field.nullable) merged[name] = null;
  }
  return replacedValues(type, row, merged, check);
}

/** Operations in a JSON Patch at most. */
const operationsMax = 1_000;

/**
 * PATCH with a JSON Patch (RFC 6902): all of its operations or none. What comes out is as if it had been PUT.
 * @throws Problem 422 for an operation that cannot be done, 409 for a `test` that fails
 */
export function patchedValues(type: ResourceType, row: OwnedRow, patch: unknown, check: BodyCheck): Members {
  if (patch === undefined) throw new Problem(400, 'A body is required.', { code: 'no-body' });
  const operations = checkPatch(patch);
  const document = toMembers(type, row);
  let added = 0;
  for (const [index, operation] of operations.entries()) {
    const isThere = hasPlaces(document, operation);
    const error = isThere ? applyOperation(document, operation) : null;
    if (error?.name === 'TestError' || (!isThere && operation.op === 'test')) {
      throw new Problem(409, 'A test of the patch failed: the resource is not as it expects.', {
        code: 'patch-test-failed',
        errors: [{ pointer: `/${index}`, message: 'the value is another' }],
      });
    }
    if (error !== null || !isThere)
      throw bodyProblem([{ pointer: `/${index}`, message: 'this operation cannot be done here' }]);
    // A copy of a copy of a copy grows without end.
    if (operation.op === 'copy') added += JSON.stringify(document).length;
    if (added > patchedCharactersMax)
      throw bodyProblem([{ pointer: `/${index}`, message: 'copies too much' }]);
  }
  const members = toMembers(type, row);
  const faults = Object.keys(members)
    .filter(
      (name) =>
        !Object.hasOwn(document, name) &&
        type.fields.every((field) => field.name !== name || field.set !== 'client'),
    )
    .map((name) => ({ pointer: `/${name}`, message: 'cannot be removed', code: 'read-only' }));
  if (faults.length > 0) throw bodyProblem(faults);
  return replacedValues(type, row, document, check);
}

/** Characters that the copies of a patch may write in all. */
const patchedCharactersMax = 4_194_304;

function checkPatch(patch: unknown): Operation[] {
  if (!Array.isArray(patch)) throw bodyProblem([{ pointer: '', message: 'must be an array of operations' }]);
  if (patch.length > operationsMax) {
    throw bodyProblem([{ pointer: '', message: `may have ${operationsMax} operations at most` }]);
  }
  const isPointer = (value: unknown) => typeof value === 'string' && /^(?:\/(?:[^~]|~[01])*)?$/.test(value);
  const faults = patch.flatMap((operation: unknown, index) => {
    const { op, path, from } = (isObject(operation) ? operation : {}) as Members;
    const isWhole =
      ['add', 'remove', 'replace', 'move', 'copy', 'test'].includes(String(op)) &&
      isPointer(path) &&
      (!['move', 'copy'].includes(String(op)) || isPointer(from)) &&
      (!['add', 'replace', 'test'].includes(String(op)) || Object.hasOwn(operation as object, 'value'));
    // The whole resource is no member of itself: what is changed are its members.
    if (isWhole && (path !== '' || op === 'test')) return [];
    return [{ pointer: `/${index}`, message: 'is not an operation of RFC 6902 on a member' }];
  });
  if (faults.length > 0) throw bodyProblem(faults);
  return patch as Operation[];
}

/**
 * Whether what an operation names is there. The library would also find what a value inherits, like `toString`, and
 * change it for everybody.
 */
function hasPlaces(document: Members, operation: Operation): boolean {
  const slash = operation.path.lastIndexOf('/');
  const parent = operation.path.slice(0, slash);
  // It would become what the object inherits from, and be no member of it.
  if (operation.path.slice(slash + 1) === '__proto__') return false;
  switch (operation.op) {
    case 'add':
      return isMember(document, parent);
    case 'move':
      // RFC 6902 section 4.4: nothing moves into itself.
      return (
        isMember(document, operation.from) &&
        isMember(document, parent) &&
        !operation.path.startsWith(`${operation.from}/`)
      );
    case 'copy':
      return isMember(document, operation.from) && isMember(document, parent);
    default:
      return isMember(document, operation.path);
  }
}

/** RFC 6901 section 4, for own members alone: an index of an array has no leading zeros and no other form. */
function isMember(document: unknown, pointer: string): boolean {
  let value = document;
  for (const token of pointer.split('/').slice(1)) {
    const name = token.replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return false;
    if (Array.isArray(value) && !/^(?:0|[1-9]\d*)$/.test(name)) return false;
    value = (value as Members)[name];
  }
  return true;
}

/** @returns the error that the library found, or null */
function applyOperation(document: Members, operation: Operation): Error | null {
  try {
    return applyPatch(document, [operation])[0] ?? null;
  } catch (error) {
    return error as Error;
  }
}

/** RFC 7396 section 2, step by step. */
export function mergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const result: Members = isObject(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete result[name];
    else result[name] = mergePatch(result[name], value);
  }
  return result;
}

function isObject(value: unknown): value is Members {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
