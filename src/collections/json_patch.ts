/**
 * JSON Patch (RFC 6902): applies all operations or none, with bounded work. Before each operation, the places that it names
 * must exist, and the depth of the document, the copied text and the visited values must stay within their limits.
 */

import { jsonDepthMax } from '../http/json.ts';
import { bodyProblem, Problem } from '../http/problem.ts';

type Members = Record<string, unknown>;

type Operation =
  | { op: 'add'; path: string; value: unknown }
  | { op: 'replace'; path: string; value: unknown }
  | { op: 'test'; path: string; value: unknown }
  | { op: 'remove'; path: string }
  | { op: 'move'; path: string; from: string }
  | { op: 'copy'; path: string; from: string };

export const patchOperationsMax = 1_000;

/** Total characters of JSON that the `copy` operations of a patch may add. */
const copiedCharactersMax = 4_194_304;

/**
 * Total values that a patch may visit, with nested ones: those that it adds, and those that `copy`, `move` and `test` name. To copy an empty
 * object takes half a microsecond.
 */
const visitedValuesMax = 150_000;

/** To copy a value costs as much as so many visited ones, and what copies add is looked at again. A patch of a kilobyte can double a list ten times. */
const visitsPerCopy = 10;

/** Shifting this many array elements by one place costs as much as one visited value. */
const shiftsPerVisit = 64;

interface Work {
  copiedCharacters: number;
  visitedValues: number;
}

/**
 * @param document changed in place @param patch whose values become parts of the document
 * @throws Problem 422 for an operation that is invalid, impossible or too expensive, 409 for a failed `test`
 */
export function applyJsonPatch(document: Members, patch: unknown): void {
  const work: Work = { copiedCharacters: 0, visitedValues: 0 };
  for (const [index, operation] of checkOperations(patch).entries()) {
    const error = applyOperation(document, operation, work);
    if (error === 'test failed') {
      throw new Problem(409, 'A test operation of the patch failed.', {
        code: 'patch-test-failed',
        errors: [{ pointer: `/${index}`, message: 'the value is different' }],
      });
    }
    if (error !== undefined) throw bodyProblem([{ pointer: `/${index}`, message: error }]);
  }
}

function checkOperations(patch: unknown): Operation[] {
  if (!Array.isArray(patch)) throw bodyProblem([{ pointer: '', message: 'must be an array of operations' }]);
  if (patch.length > patchOperationsMax) {
    throw bodyProblem([{ pointer: '', message: `may have at most ${patchOperationsMax} operations` }]);
  }
  const faulty = patch.findIndex((operation) => !isOperation(operation));
  if (faulty === -1) return patch as Operation[];
  throw bodyProblem([{ pointer: `/${faulty}`, message: 'is not a valid operation of RFC 6902 on a member' }]);
}

function isOperation(operation: unknown): boolean {
  if (!isContainer(operation)) return false;
  const { op, path, from } = operation as Members;
  if (!isPointer(path)) return false;
  switch (op) {
    case 'test':
      return Object.hasOwn(operation, 'value');
    // An empty path names the whole resource, of which only members can be changed.
    case 'add':
    case 'replace':
      return path !== '' && Object.hasOwn(operation, 'value');
    case 'remove':
      return path !== '';
    case 'move':
    case 'copy':
      return path !== '' && isPointer(from);
    default:
      return false;
  }
}

/** RFC 6901 section 3. */
function isPointer(value: unknown): value is string {
  return typeof value === 'string' && (value === '' || value.startsWith('/')) && !/~(?![01])/.test(value);
}

/** @returns the error, or undefined if the operation was applied */
function applyOperation(document: Members, operation: Operation, work: Work): string | undefined {
  if (!hasPlaces(document, operation))
    return operation.op === 'test' ? 'test failed' : 'names a place that does not exist';
  const excess = chargeFor(document, operation, work);
  if (excess !== undefined) return excess;
  if (operation.op === 'test') {
    return isEqual(valueAt(document, operation.path), operation.value) ? undefined : 'test failed';
  }
  return change(document, operation) ? undefined : 'is not possible here';
}

/** @returns whether the change was possible */
function change(document: Members, operation: Exclude<Operation, { op: 'test' }>): boolean {
  const { path } = operation;
  switch (operation.op) {
    case 'add':
      return insert(document, path, operation.value);
    case 'replace':
      remove(document, path);
      return insert(document, path, operation.value);
    case 'remove':
      return remove(document, path);
    case 'copy':
      return insert(document, path, copyOf(valueAt(document, operation.from)));
    default: {
      const value = valueAt(document, operation.from);
      return remove(document, operation.from) && insert(document, path, value);
    }
  }
}

/** RFC 6902 section 4.1: inserts before an array element, or replaces an object member. */
function insert(document: Members, pointer: string, value: unknown): boolean {
  const parent = valueAt(document, parentOf(pointer));
  const token = tokensOf(pointer).at(-1) as string;
  if (!isContainer(parent)) return false;
  if (!Array.isArray(parent)) {
    (parent as Members)[token] = value;
    return true;
  }
  const index = token === '-' ? parent.length : isIndex(token) ? Number(token) : Number.POSITIVE_INFINITY;
  if (index > parent.length) return false;
  parent.splice(index, 0, value);
  return true;
}

function remove(document: Members, pointer: string): boolean {
  const parent = valueAt(document, parentOf(pointer));
  const token = tokensOf(pointer).at(-1);
  // The whole resource has no parent to remove it from.
  if (token === undefined) return false;
  if (Array.isArray(parent)) parent.splice(Number(token), 1);
  else delete (parent as Members)[token];
  return true;
}

/** Adds the cost of an operation. @returns an error if it exceeds a limit */
function chargeFor(document: Members, operation: Operation, work: Work): string | undefined {
  const { op, path } = operation;
  const size = measure(visitedBy(document, operation), visitedValuesMax - work.visitedValues);
  work.visitedValues += size.values + shiftCost(document, path);
  if (op === 'move') work.visitedValues += shiftCost(document, operation.from);
  if (op === 'copy') {
    work.visitedValues += size.values * (visitsPerCopy - 1);
    work.copiedCharacters += size.characters;
  }
  if (work.visitedValues > visitedValuesMax)
    return `does too much: a patch may visit ${visitedValuesMax} values`;
  if (work.copiedCharacters > copiedCharactersMax) {
    return `copies too much: a patch may copy ${copiedCharactersMax} characters`;
  }
  if (op === 'remove' || op === 'test') return undefined;
  // The parser has checked the depth of the body, but not the depth at the target.
  return depthOf(path) + size.depth > jsonDepthMax
    ? `nests more than ${jsonDepthMax} levels deep`
    : undefined;
}

function visitedBy(document: Members, operation: Operation): unknown {
  switch (operation.op) {
    case 'add':
    case 'replace':
      return operation.value;
    case 'test':
      return valueAt(document, operation.path);
    case 'move':
    case 'copy':
      return valueAt(document, operation.from);
    case 'remove':
      return undefined;
  }
}

/** Inserting or removing an array element shifts the elements behind it. */
function shiftCost(document: Members, pointer: string): number {
  const parent = valueAt(document, parentOf(pointer));
  return Array.isArray(parent) ? parent.length / shiftsPerVisit : 0;
}

interface Size {
  values: number;
  /** Approximate length as JSON. */
  characters: number;
  /** Levels of nested objects and arrays. */
  depth: number;
}

/** @param valuesMax stops counting above this number */
function measure(value: unknown, valuesMax: number): Size {
  const size: Size = { values: 0, characters: 0, depth: 0 };
  const visit = (visited: unknown, depth: number): void => {
    size.values += 1;
    size.characters += typeof visited === 'string' ? visited.length + 2 : 4;
    if (!isContainer(visited)) return;
    size.depth = Math.max(size.depth, depth + 1);
    if (Array.isArray(visited)) {
      for (const item of visited) {
        if (size.values > valuesMax) return;
        visit(item, depth + 1);
      }
      return;
    }
    for (const name in visited) {
      if (size.values > valuesMax) return;
      size.characters += name.length + 4;
      visit((visited as Members)[name], depth + 1);
    }
  };
  if (value !== undefined) visit(value, 0);
  return size;
}

/** Whether the places that an operation names exist. Only own members count, so that it cannot reach inherited ones. */
function hasPlaces(document: Members, operation: Operation): boolean {
  const { op, path } = operation;
  // Assigning to __proto__ would change the prototype instead of adding a member.
  if (tokensOf(path).at(-1) === '__proto__') return false;
  switch (op) {
    case 'add':
      return isThere(document, parentOf(path));
    case 'move':
      // RFC 6902 section 4.4: a value cannot move into itself.
      return (
        isThere(document, operation.from) &&
        isThere(document, parentOf(path)) &&
        !path.startsWith(`${operation.from}/`)
      );
    case 'copy':
      return isThere(document, operation.from) && isThere(document, parentOf(path));
    default:
      return isThere(document, path);
  }
}

function isThere(document: Members, pointer: string): boolean {
  return valueAt(document, pointer) !== undefined;
}

/**
 * RFC 6901 section 4, for own members only. An array index has no leading zeros.
 * @returns undefined if there is no value, which JSON itself cannot contain
 */
function valueAt(document: Members, pointer: string): unknown {
  let value: unknown = document;
  for (const token of tokensOf(pointer)) {
    if (!isContainer(value) || !Object.hasOwn(value, token)) return undefined;
    if (Array.isArray(value) && !isIndex(token)) return undefined;
    value = (value as Members)[token];
  }
  return value;
}

function isIndex(token: string): boolean {
  return /^(?:0|[1-9]\d*)$/.test(token);
}

function tokensOf(pointer: string): string[] {
  return pointer
    .split('/', jsonDepthMax + 2)
    .slice(1)
    .map((token) => token.replaceAll('~1', '/').replaceAll('~0', '~'));
}

function parentOf(pointer: string): string {
  return pointer.slice(0, pointer.lastIndexOf('/'));
}

/** Counts the objects and arrays that enclose the target of a pointer, including the document. */
function depthOf(pointer: string): number {
  return pointer.split('/', jsonDepthMax + 2).length - 1;
}

/** Takes a tenth of the time of `structuredClone`. */
function copyOf(value: unknown): unknown {
  if (!isContainer(value)) return value;
  if (Array.isArray(value)) return value.map(copyOf);
  const copy: Members = { ...value };
  for (const name in copy) if (isContainer(copy[name])) copy[name] = copyOf(copy[name]);
  return copy;
}

/** RFC 6902 section 4.6: the order of members does not matter. `chargeFor` has counted the visits. */
function isEqual(left: unknown, right: unknown): boolean {
  if (!isContainer(left) || !isContainer(right)) return left === right;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const names = Object.keys(left);
  if (names.length !== Object.keys(right).length) return false;
  return names.every(
    (name) => Object.hasOwn(right, name) && isEqual((left as Members)[name], (right as Members)[name]),
  );
}

function isContainer(value: unknown): value is object {
  return typeof value === 'object' && value !== null;
}
