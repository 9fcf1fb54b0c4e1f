/**
 * Building blocks of the schemas of the API. One schema validates a value and describes it in the reference. So it also has its
 * name there, the words for its values in errors, and a code for programs. Symbols hold these: neither JSON nor the validator
 * sees them, and they survive when a schema is made optional.
 */

import Type, { type TSchema } from 'typebox';
import type { ProblemCode } from './problem_codes.ts';

const nameKey = Symbol('name');
const wordsKey = Symbol('words');
const codeKey = Symbol('code');

interface Notes {
  [nameKey]?: string;
  [wordsKey]?: string;
  [codeKey]?: ProblemCode;
}

/** Names a schema. The reference describes it once, and refers to it wherever it occurs. */
export function named<S extends TSchema>(name: string, schema: S): S {
  return withNotes(schema, { [nameKey]: name });
}

/** Also copies the members by which TypeBox knows its own schemas. They are not enumerable. */
function withNotes<S extends TSchema>(schema: S, notes: Notes): S {
  return Object.assign(Object.defineProperties({}, Object.getOwnPropertyDescriptors(schema)), notes) as S;
}

/** @returns the name of a schema in the reference */
export function schemaName(schema: TSchema): string | undefined {
  return (schema as Notes)[nameKey];
}

/**
 * Says in errors what a value must be, where the schema alone would say too little.
 * @param words follow `must be`
 * @param code a stable word for programs
 */
export function worded<S extends TSchema>(words: string, schema: S, code?: ProblemCode): S {
  return withNotes(schema, { [wordsKey]: words, ...(code === undefined ? {} : { [codeKey]: code }) });
}

/** Whether the schema says in words what its values must be. */
export function hasWords(schema: unknown): boolean {
  return (schema as Notes | undefined)?.[wordsKey] !== undefined;
}

/** The code of errors at places with this schema. A union without one, such as of a value and null, has that of its first alternative. */
export function errorCode(schema: unknown): ProblemCode | undefined {
  const { [codeKey]: code, anyOf = [] } = (schema ?? {}) as Notes & { anyOf?: Notes[] };
  return code ?? anyOf[0]?.[codeKey];
}

export const Id = () => Type.String({ format: 'uuid' });
export const Time = () => Type.String({ format: 'date-time' });
/** A URL as browsers read it (WHATWG), so other characters than ASCII are allowed. What uses it parses and checks it. */
export const Url = () => Type.String({ format: 'iri', maxLength: 2_048 });
export const Nullable = <S extends TSchema>(schema: S) => Type.Union([schema, Type.Null()]);
export const StringEnum = <const Name extends string>(...names: readonly Name[]) =>
  Type.Unsafe<Name>({ type: 'string', enum: names });
/** For objects without other members. */
export const strict = { additionalProperties: false };
/** Refers to a schema by its name. Needed only where schemas refer to each other: elsewhere the schema itself is named. */
export const reference = (name: string): TSchema => ({ $ref: `#/components/schemas/${name}` });

/** A sentence without its subject: what a value of this schema must be. */
export function mustBe(schema: TSchema): string {
  return `must be ${wordsFor(schema as JsonSchema)}`;
}

type JsonSchema = Notes & { [member: string]: unknown };

const formatWords: Readonly<Record<string, string>> = {
  uuid: 'an id (UUID)',
  'date-time': 'an RFC 3339 time',
  uri: 'a URL',
  iri: 'a URL',
};

function wordsFor(schema: JsonSchema): string {
  if (schema[wordsKey] !== undefined) return schema[wordsKey];
  const alternatives = schema.anyOf as JsonSchema[] | undefined;
  if (alternatives !== undefined) return [...new Set(alternatives.map(wordsFor))].join(', or ');
  const values = schema.const === undefined ? (schema.enum as unknown[] | undefined) : [schema.const];
  if (values !== undefined) {
    const texts = values.map((value) => JSON.stringify(value));
    return texts.length === 1 ? (texts[0] as string) : `one of ${texts.join(', ')}`;
  }
  const { type } = schema;
  if (type === 'integer') return `an integer${rangeOf(schema.minimum, schema.maximum)}`;
  if (type === 'number') return `a number${rangeOf(schema.minimum, schema.maximum)}`;
  if (type === 'boolean') return 'true or false';
  if (type === 'array') return `an array${countOf(schema.minItems, schema.maxItems, 'items')}`;
  if (type === 'object') return 'an object';
  if (type === 'null') return 'null';
  if (type !== 'string') return 'valid';
  const format =
    formatWords[String(schema.format)] ?? (schema.format && `a string of the format ${schema.format}`);
  const pattern = schema.pattern === undefined ? '' : ` that matches ${schema.pattern}`;
  return `${format || 'a string'}${countOf(schema.minLength, schema.maxLength, 'characters')}${pattern}`;
}

function rangeOf(min: unknown, max: unknown): string {
  if (min !== undefined && max !== undefined) return ` from ${min} to ${max}`;
  if (min !== undefined) return ` of at least ${min}`;
  return max === undefined ? '' : ` of at most ${max}`;
}

function countOf(min: unknown, max: unknown, unit: string): string {
  if (min !== undefined && max !== undefined) return ` of ${min} to ${max} ${unit}`;
  if (max !== undefined) return ` of at most ${max} ${unit}`;
  return min === undefined ? '' : ` of at least ${min} ${unit}`;
}
