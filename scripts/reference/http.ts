/** The page of HTTP operations: who may call each, its parameters, bodies and responses. Made from what the server publishes as OpenAPI. */

import { accountsPart } from '../../src/api/accounts/accounts.ts';
import { adminPart } from '../../src/api/admin/admin.ts';
import { appsPart } from '../../src/api/apps/apps.ts';
import { eventsPart } from '../../src/api/events/events.ts';
import { webhooksPart } from '../../src/api/webhooks/webhooks.ts';
import type { AdmissionRule, Audience, Operation } from '../../src/http/operation.ts';
import { mustBe } from '../../src/http/schema.ts';
import { openApiDocument } from '../../src/web/reference/openapi.ts';
import { anchorOf, code, generatedNotice, table } from './markdown.ts';
import { otherAddresses } from './other_addresses.ts';

const audiences: Readonly<Record<Audience, string>> = {
  anyone: 'anyone',
  token: 'any token',
  member: 'app developers, for their apps',
  machine: 'machine clients of the operator',
  administrator: 'administrators',
};

const introduction = `# HTTP operations

Every operation of the API, without those of your own [collections](../platform.md#collections), whose behavior [api.md](../api.md)
describes. A running server has the same with its collections, to try out, at \`/docs\`, and as OpenAPI at \`/openapi.json\`.

*Who* may call an operation is checked before anything else. Members of an app see it under \`/apps\`, and administrators see every app there.
An account is a member of the apps that it created or was invited to. [management.md](../management.md#who) says what each right is worth.
All scopes of a row are required. Errors are problem details with a \`code\`: [error codes](../api.md#error-codes).`;

interface Schema {
  $ref?: string;
  type?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  allOf?: Schema[];
}

interface Content {
  content?: Record<string, { schema?: Schema; example?: unknown }>;
}

interface DescribedOperation {
  parameters: { name: string; in: string; required?: boolean; description: string; schema: Schema }[];
  requestBody?: Content;
  responses: Record<string, Content & { $ref?: string; description?: string }>;
}

interface Document {
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, DescribedOperation>>;
  components: { schemas: Record<string, Schema> };
}

const parts = [eventsPart([]), webhooksPart([]), appsPart, accountsPart, adminPart];

/** The operations that the page describes. */
const operations: readonly Operation[] = parts.flatMap((part) => part.operations);

export function httpPage(): string {
  const source = { name: 'Nuncio', baseUrl: '', parts, kinds: [], scopes: [] };
  const document: Document = JSON.parse(JSON.stringify(openApiDocument(source)));
  const groups = document.tags.map(({ name, description }) => {
    const own = operations.filter(({ tag }) => tag === name);
    return [
      `## ${capitalized(name)}`,
      description,
      overview(own),
      ...own.map((operation) => operationSection(operation, document)),
    ].join('\n\n');
  });
  const objects = Object.entries(document.components.schemas).map(
    ([name, schema]) => `### ${name}\n\n${objectText(schema)}`,
  );
  return `${[
    generatedNotice,
    introduction,
    ...groups,
    '## Addresses outside the API',
    table(
      ['path', 'for whom'],
      Object.entries(otherAddresses).map(([path, who]) => [code(path), who]),
    ),
    '## Objects',
    'The bodies of requests and responses, in alphabetical order.',
    ...objects,
  ].join('\n\n')}\n`;
}

function overview(own: readonly Operation[]): string {
  return table(
    ['operation', 'what it does', 'who', 'scopes'],
    own.map(({ method, path, summary, admission }) => [
      code(`${method.toUpperCase()} ${shownPath(path)}`),
      `[${summary}](#${anchorOf(summary)})`,
      ...describeAdmission(admission),
    ]),
  );
}

function describeAdmission({ audience, scopes }: AdmissionRule): [string, string] {
  return [audiences[audience], scopes.map(code).join(', ')];
}

function operationSection(operation: Operation, { paths }: Document): string {
  const { method, path, summary, description } = operation;
  const described = paths[path]?.[method] as DescribedOperation;
  const [who, scopes] = describeAdmission(operation.admission);
  const parameters = described.parameters.map((parameter) => [
    code(parameter.name),
    `${parameter.in}${parameter.required === true ? ', required' : ''}`,
    typeOf(parameter.schema),
    parameter.description,
  ]);
  const responses = Object.entries(described.responses).filter(([, { $ref }]) => $ref === undefined);
  const problems = Object.entries(described.responses).filter(([, { $ref }]) => $ref !== undefined);
  return [
    `### ${summary}`,
    `${code(`${method.toUpperCase()} ${shownPath(path)}`)}, for ${who}${scopes === '' ? '' : ` with ${scopes}`}.`,
    ...(description === undefined ? [] : [description]),
    ...(parameters.length === 0 ? [] : [table(['parameter', 'where', 'value', 'meaning'], parameters)]),
    ...requestBody(described.requestBody),
    table(
      ['response', 'body', ''],
      [
        ...responses.map(([status, response]) => [status, contentOf(response), response.description ?? '']),
        [problems.map(([status]) => status).join(', '), '[Problem](#problem)', 'errors'],
      ],
    ),
  ].join('\n\n');
}

function requestBody(body: Content | undefined): string[] {
  if (body?.content === undefined) return [];
  const types = new Map<string, string[]>();
  for (const [type, { schema }] of Object.entries(body.content)) {
    const shown = schema === undefined ? 'any' : typeOf(schema);
    types.set(shown, [...(types.get(shown) ?? []), code(type)]);
  }
  return [...types].map(([shown, names]) => `Body: ${shown} (${names.join(', ')}).`);
}

function contentOf({ content = {} }: Content): string {
  const shown = Object.values(content).map(({ schema }) => (schema === undefined ? 'other' : typeOf(schema)));
  return [...new Set(shown)].join(', ') || 'none';
}

function objectText(schema: Schema): string {
  if (schema.properties !== undefined) return fieldTable(schema);
  const words = typeOf(schema);
  return `${schema.description ?? ''} Must be ${words}.`.trim();
}

function fieldTable({ properties = {}, required = [] }: Schema): string {
  const rows = Object.entries(properties).flatMap(([name, schema]) =>
    fieldRows(name, schema, required.includes(name)),
  );
  return rows.length === 0 ? 'No members.' : table(['member', 'value', ''], rows);
}

/** The row of a member, followed by those of an object in it. */
function fieldRows(name: string, schema: Schema, isRequired: boolean): string[][] {
  const inner = schema.properties ?? schema.items?.properties;
  const prefix = schema.items?.properties === undefined ? name : `${name}[]`;
  const required = schema.required ?? schema.items?.required ?? [];
  const own = [
    code(name),
    typeOf(schema),
    [isRequired ? '' : 'optional', schema.description ?? ''].filter(Boolean).join('; '),
  ];
  const rows = Object.entries(inner ?? {}).flatMap(([member, each]) =>
    fieldRows(`${prefix}.${member}`, each, required.includes(member)),
  );
  return [own, ...rows];
}

/** What a value is, as errors say it. */
function typeOf(schema: Schema): string {
  if (schema.$ref !== undefined) {
    const name = schema.$ref.slice(schema.$ref.lastIndexOf('/') + 1);
    return `[${name}](#${anchorOf(name)})`;
  }
  if (schema.anyOf !== undefined) return [...new Set(schema.anyOf.map(typeOf))].join(', or ');
  if (schema.type === 'array' && schema.items?.$ref !== undefined) return `array of ${typeOf(schema.items)}`;
  if (schema.type === 'object' && schema.properties !== undefined) {
    return `an object with ${Object.keys(schema.properties).map(code).join(', ')}`;
  }
  const words = mustBe(schema as never).slice('must be '.length);
  const escaped = words.replace(
    / that matches (.+)$/,
    (_whole, pattern: string) => ` that matches ${code(pattern)}`,
  );
  return escaped.replaceAll(/(?<=^|, or |, )(?:one of )?("[^"]*"(?:, "[^"]*")*)/g, (part) => code(part));
}

function shownPath(path: string): string {
  return path.replaceAll(/\{(\w+)\}/g, '<$1>');
}

function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
