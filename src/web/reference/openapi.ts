/**
 * The OpenAPI 3.1 document of the API, with deliveries as its `webhooks`. It is built from the route schemas of all rooms, so
 * it matches what the server does.
 */

import Type, { type TSchema } from 'typebox';
import type { EventKind } from '../../events/kind.ts';
import { describeForDevelopers, type Scope } from '../../grants/scopes.ts';
import type { BodyDescription, Operation, ReferencePart, ResponseDescription } from '../../http/operation.ts';
import { version } from '../../version.ts';
import { describedHeaders } from '../../webhooks/subscriptions/delivery_headers.ts';
import { DocumentSchemas } from './document_schemas.ts';

export interface ReferenceSource {
  /** The operator's name for the server. */
  name: string;
  baseUrl: string;
  parts: readonly ReferencePart[];
  kinds: readonly EventKind[];
  /** Scopes that users or clients can be granted. */
  scopes: Iterable<Scope>;
}

type Json = Record<string, unknown>;

export function openApiDocument({ name, baseUrl, parts, kinds, scopes }: ReferenceSource): Json {
  const schemas = new DocumentSchemas();
  const all = [...scopes];
  const describe = (some: readonly Scope[]) =>
    Object.fromEntries(some.map((scope) => [scope.name, describeForDevelopers(scope)]));
  const paths: Record<string, Json> = {};
  for (const operation of parts.flatMap((part) => part.operations)) {
    paths[operation.path] = {
      ...paths[operation.path],
      [operation.method]: operationObject(operation, schemas),
    };
  }
  return {
    openapi: '3.1.0',
    info: {
      title: name,
      version,
      description:
        'Resources of users, for apps that they connect, and events, delivered as they happen. Bodies are I-JSON (RFC 7493): UTF-8, without duplicate members and lone surrogates. They contain no NUL and are nested at most 64 levels deep.',
    },
    servers: [{ url: baseUrl }],
    tags: parts.flatMap((part) => part.tags),
    paths,
    webhooks: Object.fromEntries(kinds.map((kind) => [kind.name, webhookObject(kind)])),
    components: {
      schemas: { Problem: problemSchema, ...schemas.byName },
      headers: headerObjects,
      responses: Object.fromEntries(
        Object.entries(problems).map(([status, text]) => [
          `Problem${status}`,
          problemResponse(Number(status), text),
        ]),
      ),
      securitySchemes: {
        oauth: {
          type: 'oauth2',
          flows: {
            authorizationCode: {
              authorizationUrl: `${baseUrl}/oauth/authorize`,
              tokenUrl: `${baseUrl}/oauth/token`,
              refreshUrl: `${baseUrl}/oauth/token`,
              scopes: describe(all.filter((scope) => scope.isForUsers)),
            },
            clientCredentials: { tokenUrl: `${baseUrl}/oauth/token`, scopes: describe(all) },
          },
        },
        token: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' },
      },
    },
  };
}

/** Problems that every operation with a token can return. */
const commonProblems = [400, 401, 403, 406, 429, 431, 503];

/** The statuses of problems that an operation can return. */
function problemsOf({ method, path, admission, body, problems = [] }: Operation): Set<number> {
  return new Set([
    ...(admission.audience === 'anyone' ? [406, 431, 503] : commonProblems),
    ...(path.includes('{') ? [404] : []),
    ...(body === undefined ? [] : [413, 415, 422]),
    ...(method === 'delete' ? [413, 415] : []),
    ...problems,
  ]);
}

function operationObject(operation: Operation, schemas: DocumentSchemas): Json {
  const { admission, body, parameters = [] } = operation;
  const isPublic = admission.audience === 'anyone';
  const responses: Record<string, Json> = {};
  for (const [status, response] of Object.entries(operation.responses))
    responses[status] = responseObject(response, isPublic, schemas);
  for (const status of problemsOf(operation))
    responses[status] = { $ref: `#/components/responses/Problem${status}` };
  return {
    operationId: operation.id,
    tags: [operation.tag],
    summary: operation.summary,
    ...(operation.description === undefined ? {} : { description: operation.description }),
    parameters: parameters.map(({ schema, ...rest }) => ({ ...rest, schema: schemas.show(schema) })),
    ...(body === undefined ? {} : { requestBody: bodyObject(body, schemas) }),
    responses,
    security: isPublic ? [] : [{ oauth: admission.scopes }, { token: [] }],
  };
}

function bodyObject(body: BodyDescription, schemas: DocumentSchemas): Json {
  const contentOf = ({ schema, example }: { schema: TSchema; example?: unknown }) => ({
    schema: schemas.show(schema, true),
    ...(example === undefined ? {} : { example }),
  });
  const content = body.types.map((type) => [type, contentOf(body)] as const);
  const others = Object.entries(body.otherTypes ?? {}).map(
    ([type, other]) => [type, contentOf(other)] as const,
  );
  return { required: body.required, content: Object.fromEntries([...content, ...others]) };
}

const headersOfEveryResponse = ['Nuncio-Version', 'Request-Id'];
const headersWithToken = [
  'Cache-Control',
  'Vary',
  'RateLimit-Limit',
  'RateLimit-Remaining',
  'RateLimit-Reset',
];

function responseObject(
  { description, schema, example, headers = [] }: ResponseDescription,
  isPublic: boolean,
  schemas: DocumentSchemas,
): Json {
  const names = [...headers, ...headersOfEveryResponse, ...(isPublic ? [] : headersWithToken)];
  return {
    description,
    headers: Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }])),
    ...(schema === undefined
      ? {}
      : { content: { 'application/json': { schema: schemas.show(schema), example } } }),
  };
}

const headerDescriptions: Readonly<Record<string, string>> = {
  'Cache-Control': 'Private to the token.',
  ETag: 'The value for If-Match and If-None-Match.',
  'Idempotency-Replayed':
    '`true` if this is the stored response to an earlier request with the same Idempotency-Key.',
  'Last-Modified': 'When the resource last changed.',
  Link: 'RFC 8288: the next page, as rel="next".',
  Location: 'The URL of the new resource.',
  'Nuncio-Version': 'The version of the server.',
  'RateLimit-Limit': 'Requests a minute.',
  'RateLimit-Remaining': 'Requests left in this minute.',
  'RateLimit-Reset': 'Seconds until the minute ends.',
  'Request-Id': 'The id of the request. Quote it in support requests.',
  Vary: 'The request headers that the response depends on.',
};

const headerObjects = Object.fromEntries(
  Object.entries(headerDescriptions).map(([name, description]) => [
    name,
    { description, schema: { type: name.startsWith('RateLimit') ? 'integer' : 'string' } },
  ]),
);

const problems: Readonly<Record<number, string>> = {
  400: 'The request cannot be read, or a parameter is wrong.',
  401: 'The access token is missing or not valid (RFC 6750).',
  403: 'The token lacks a scope, or the resource belongs to another user.',
  404: 'Not found, or not visible to the token.',
  406: 'The response is JSON, which the request does not accept.',
  409: 'The state of the resource does not allow this, or the first request with the Idempotency-Key is still running.',
  412: 'A condition of the request is not met.',
  413: 'The body is too large.',
  415: 'The type of the body is not supported.',
  422: 'The body is not valid; see `errors`.',
  429: 'Too many requests; retry after `Retry-After`.',
  431: 'The URL and the headers exceed 16 KiB.',
  503: 'The database is currently unavailable.',
};

function problemResponse(status: number, description: string): Json {
  return {
    description,
    content: {
      'application/problem+json': {
        schema: { $ref: '#/components/schemas/Problem' },
        example: {
          type: 'about:blank',
          title: description,
          status,
          detail: description,
          instance: 'urn:uuid:01981f6e-7c5a-7d3e-9f21-3b8a5d0c6e11',
        },
      },
    },
  };
}

/** RFC 9457. */
const problemSchema: TSchema = Type.Object(
  {
    type: Type.String({ format: 'uri-reference' }),
    title: Type.String(),
    status: Type.Integer({ minimum: 400, maximum: 599 }),
    detail: Type.String(),
    instance: Type.String({ format: 'uri' }),
    code: Type.Optional(Type.String({ description: 'A stable code for programs.' })),
    errors: Type.Optional(
      Type.Array(
        Type.Object({
          pointer: Type.String({ description: 'RFC 6901: the place in the body.' }),
          message: Type.String(),
          code: Type.Optional(Type.String()),
        }),
      ),
    ),
  },
  { additionalProperties: false },
);

function webhookObject(kind: EventKind): Json {
  return {
    post: {
      operationId: `on_${kind.name.replaceAll('.', '_')}`,
      summary: kind.description,
      description:
        kind.object === null ? 'Available to every subscription.' : `Needs the scope read:${kind.object}.`,
      parameters: describedHeaders.map(([name, description]) => ({
        name,
        in: 'header',
        description,
        schema: { type: 'string' },
      })),
      requestBody: {
        required: true,
        content: { 'application/json': { schema: kind.schema, example: kind.example } },
      },
      responses: { '2XX': { description: 'Received. Everything else is retried by the schedule.' } },
      security: [],
    },
  };
}
