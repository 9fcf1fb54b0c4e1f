/**
 * `--set path=value` of `nuncio trigger`: changes one value of an event's body. The schema of the kind says which paths exist and
 * which type a value gets, so `--set invoice.id=12` is the text "12" and `--set invoice.amount=12` is a number.
 */

import type { TSchema } from 'typebox';
import { stepsOf } from '../events/filter.ts';
import { type JsonType, typesAt } from '../events/schema_types.ts';
import { UsageError } from './command.ts';

interface AssignedKind {
  name: string;
  schema: TSchema;
}

type Container = Record<string, unknown> | unknown[];

/**
 * Applies assignments in order. A path is names and indices with dots, such as `commits.0.message`, or a JSON pointer.
 * @returns a copy of the body
 * @throws UsageError if a path does not exist in the kind's schema or a value has another type
 */
export function assignAll(body: unknown, assignments: readonly string[], kind: AssignedKind): unknown {
  return assignments.reduce((current, text) => assign(current, text, kind), structuredClone(body));
}

function assign(body: unknown, assignment: string, { name, schema }: AssignedKind): unknown {
  const at = assignment.indexOf('=');
  const path = assignment.slice(0, Math.max(at, 0));
  const steps = path.startsWith('/') ? stepsOf(path) : path.split('.');
  if (steps === undefined || steps.includes('')) {
    throw new UsageError(`--set is "${assignment}": it must be path=value, such as invoice.amount=100`);
  }
  const types = typesAt(schema, steps);
  if (types.size === 0) throw new UsageError(`--set ${path}: the body of ${name} has no such value`);
  const value = readValue(assignment.slice(at + 1), types);
  if (value === undefined) {
    throw new UsageError(`--set ${path}: the value must be ${[...types].map(nameOfType).join(' or ')}`);
  }
  let root = body;
  if (!isContainer(root)) root = {};
  let container = root as Container;
  for (const [index, step] of steps.slice(0, -1).entries()) {
    let next = childOf(container, step);
    if (!isContainer(next)) {
      next = typesAt(schema, steps.slice(0, index + 1)).has('object') ? {} : [];
      put(container, step, next, path);
    }
    container = next as Container;
  }
  put(container, steps.at(-1) as string, value, path);
  return root;
}

const nameOfType = (type: JsonType) => (type === 'object' || type === 'array' ? `a JSON ${type}` : type);

/** Where only text is possible, text is taken as it is; elsewhere it is JSON if it has a type that is possible. */
function readValue(text: string, types: ReadonlySet<JsonType>): unknown {
  if (types.size > 1 || !types.has('string')) {
    const value = parse(text);
    if (value !== undefined && types.has(typeOf(value))) return value;
  }
  return types.has('string') ? text : undefined;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function typeOf(value: unknown): JsonType {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'array' : (typeof value as JsonType);
}

function isContainer(value: unknown): value is Container {
  return typeof value === 'object' && value !== null;
}

function childOf(container: Container, step: string): unknown {
  return Object.hasOwn(container, step) ? (container as Record<string, unknown>)[step] : undefined;
}

function put(container: Container, step: string, value: unknown, path: string): void {
  if (Array.isArray(container) && !(/^\d{1,9}$/.test(step) && Number(step) <= container.length)) {
    throw new UsageError(
      `--set ${path}: "${step}" must be an index from 0 to ${container.length}, the number of items`,
    );
  }
  // Unlike an assignment, this makes a member of the name __proto__ as well.
  Object.defineProperty(container, step, { value, writable: true, enumerable: true, configurable: true });
}
