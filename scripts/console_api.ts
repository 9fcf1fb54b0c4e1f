/**
 * Generates the console's API types (`src/console/api/generated.ts`, not committed) from the OpenAPI document of the shipped
 * platform. The console can only call operations that the server describes.
 */

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TSchema } from 'typebox';
import { createScopeCatalogue } from '../src/grants/scopes.ts';
import type { Operation, Parameter } from '../src/http/operation.ts';
import { schemaName } from '../src/http/schema.ts';
import { loadPlatform } from '../src/platform.ts';
import { referenceParts } from '../src/reference_parts.ts';
import { openApiDocument } from '../src/web/reference/openapi.ts';
import { type JsonSchema, schemaType } from './schema_type.ts';

const folder = join(import.meta.dirname, '..', 'src', 'console', 'api');

/** Writes the file if it is not up to date. */
export async function writeConsoleApi(): Promise<void> {
  const platform = await loadPlatform(null);
  const parts = referenceParts(platform);
  const scopes = createScopeCatalogue(platform.objects).values();
  const document = openApiDocument({
    name: 'Nuncio',
    baseUrl: '',
    parts,
    kinds: platform.eventKinds,
    scopes,
  });
  const { schemas } = JSON.parse(JSON.stringify(document)).components as {
    schemas: Record<string, JsonSchema>;
  };
  const types = Object.entries(schemas).map(
    ([name, schema]) => `export type ${name} = ${schemaType(schema)};`,
  );
  const operations = parts.flatMap((part) => part.operations).map(operationType);
  const source = `${types.join('\n')}\nexport interface Operations {\n${operations.join('\n')}\n}\n`;
  const path = join(folder, 'generated.ts');
  mkdirSync(folder, { recursive: true });
  if (readOrNull(path) !== source) writeFileSync(path, source);
}

/** Returns the type of one operation: its parameters, body and responses. */
function operationType({ method, path, parameters = [], body, responses }: Operation): string {
  const names = (schemas: (TSchema | undefined)[], none: string) =>
    [...new Set(schemas.map((schema) => (schema === undefined ? none : schemaName(schema))))].join(' | ');
  const others = Object.values(body?.otherTypes ?? {}).map(({ schema }) => schema);
  const response = Object.values(responses).map(({ schema }) => schema);
  const members = [
    `path: ${parametersType(parameters.filter((parameter) => parameter.in === 'path'))}`,
    `query: ${parametersType(parameters.filter((parameter) => parameter.in === 'query'))}`,
    `body: ${names([body?.schema, ...others], 'undefined')}`,
    `response: ${names(response, 'null')}`,
  ];
  return `  '${method.toUpperCase()} ${path}': { ${members.join('; ')} };`;
}

function parametersType(parameters: readonly Parameter[]): string {
  const members = parameters.map(({ name, schema, required }) => {
    const { type } = schema as { type?: string };
    const isNumber = type === 'integer' || type === 'number';
    return `'${name}'${required === true ? '' : '?'}: ${isNumber ? 'number' : type === 'boolean' ? 'boolean' : 'string'}`;
  });
  return `{ ${members.join('; ')} }`;
}

function readOrNull(path: string): string | null {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return null;
  }
}

if (import.meta.main) await writeConsoleApi();
