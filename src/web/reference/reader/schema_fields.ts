/** The fields of a JSON Schema: name, type, limits, description. Nested fields open on demand. */

import { type Html, html } from '../../../http/html.ts';
import { prose } from './code.ts';
import { type ApiDocument, resolve, type Schema } from './document.ts';

/** Maximum nesting: schemas can be recursive. */
const depthMax = 5;

/** @returns nothing for a schema without fields */
export function schemaFields(document: ApiDocument, given: Schema, depth = 0): Html | null {
  const { schema } = resolve(document, given);
  const alternatives = schema.anyOf ?? schema.oneOf;
  if (alternatives !== undefined && schema.properties === undefined) {
    const shown = alternatives
      .map((alternative) => schemaFields(document, alternative, depth))
      .filter((list) => list !== null);
    if (shown.length < 2) return shown[0] ?? null;
    return html`${shown.map((list, index) => html`<p class="either">${index === 0 ? 'Either' : 'or'}</p>${list}`)}`;
  }
  if (schema.type === 'array') return schemaFields(document, schema.items ?? {}, depth);
  const properties = Object.entries(schema.properties ?? {});
  if (properties.length === 0 || depth >= depthMax) return null;
  return html`<ul class="fields">${properties.map(([name, property]) =>
    field(document, name, property, schema.required?.includes(name) ?? false, depth),
  )}</ul>`;
}

function field(document: ApiDocument, name: string, given: Schema, isRequired: boolean, depth: number): Html {
  const nested = schemaFields(document, given, depth + 1);
  return html`<li>${fieldHead(document, name, given, isRequired)}${
    nested === null
      ? null
      : html`<details><summary>Fields of <code>${name}</code></summary>${nested}</details>`
  }</li>`;
}

/** Name, type, limits and description of a field or parameter. */
export function fieldHead(
  document: ApiDocument,
  name: string,
  given: Schema,
  isRequired: boolean,
  description?: string,
): Html {
  const { schema } = resolve(document, given);
  const bounds = boundsOf(schema);
  const pattern = patternOf(schema);
  const text = description ?? given.description ?? schema.description;
  return html`<p class="field"><code class="name">${name}</code> <span class="type">${typeOf(document, given)}</span>${
    isRequired ? html` <span class="required">required</span>` : null
  }</p>${text === undefined ? null : html`<p class="about">${prose(text)}</p>`}${
    bounds.length === 0 ? null : html`<p class="bounds">${bounds.join(' · ')}</p>`
  }${
    pattern === undefined || wordsFor(pattern) !== null
      ? null
      : html`<details class="pattern"><summary>Pattern</summary><code>${pattern}</code></details>`
  }`;
}

/** The type in words: `string (UUID)`, `array of string`, `integer or null`. */
export function typeOf(document: ApiDocument, given: Schema): string {
  const { schema } = resolve(document, given);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(' | ');
  const alternatives = schema.anyOf ?? schema.oneOf;
  if (alternatives !== undefined) {
    return [...new Set(alternatives.map((alternative) => typeOf(document, alternative)))].join(' or ');
  }
  if (schema.type === 'array') return `array of ${typeOf(document, schema.items ?? {})}`;
  if (schema.type === undefined) return schema.properties === undefined ? 'any' : 'object';
  const type = [schema.type].flat().join(' or ');
  return schema.format === undefined ? type : `${type} (${formats[schema.format] ?? schema.format})`;
}

const formats: Readonly<Record<string, string>> = {
  uuid: 'UUID',
  'date-time': 'RFC 3339 time',
  uri: 'URL',
  'uri-reference': 'relative URL',
  email: 'email address',
};

/** The schema itself, or the only alternative of a nullable one. */
function withoutNull(schema: Schema): Schema {
  const choices = (schema.anyOf ?? schema.oneOf)?.filter(({ type }) => type !== 'null') ?? [];
  const [only] = choices;
  return choices.length === 1 && only !== undefined ? { ...only, default: schema.default } : schema;
}

function patternOf(schema: Schema): string | undefined {
  return withoutNull(schema).pattern;
}

/** Patterns that a few words describe. The OpenAPI document has the exact ones. */
const patternWords: Readonly<Record<string, string>> = {
  // Every text.
  '^[^\\u0000]*$': '',
  '^[!-~]+$': 'printable ASCII without spaces',
  '^[!-~](?:[ -~]*[!-~])?$': 'printable ASCII',
  '^[!-~]([ -~]*[!-~])?$': 'printable ASCII',
  '^[ -~]+$': 'printable ASCII',
  '^[A-Za-z0-9_-]+$': 'letters, digits, - and _',
  '^[^\\u0000-\\u001f\\u007f-\\u009f]+$': 'no control characters',
};

const listPattern = /^\^ \*\(([\w|]+)\) \*\(, /;

/** @returns null for a pattern that has no words */
function wordsFor(pattern: string): string | null {
  const listed = listPattern.exec(pattern)?.[1];
  return listed === undefined
    ? (patternWords[pattern] ?? null)
    : `separated by commas: ${listed.replaceAll('|', ', ')}`;
}

/** The limits in words. For a nullable type, those of the other alternative. */
function boundsOf(given: Schema): string[] {
  const schema = withoutNull(given);
  return [
    range(schema.minLength, schema.maxLength, 'characters'),
    range(schema.minItems, schema.maxItems, 'entries'),
    range(schema.minimum, schema.maximum, ''),
    schema.pattern === undefined ? null : wordsFor(schema.pattern) || null,
    schema.default === undefined ? null : `default ${JSON.stringify(schema.default)}`,
  ].filter((text) => text !== null);
}

function range(least: number | undefined, most: number | undefined, unit: string): string | null {
  const number = (value: number) => value.toLocaleString('en');
  const text =
    least !== undefined && most !== undefined
      ? `${number(least)} to ${number(most)}`
      : most !== undefined
        ? `at most ${number(most)}`
        : least !== undefined
          ? `at least ${number(least)}`
          : null;
  return text === null ? null : `${text} ${unit}`.trim();
}
