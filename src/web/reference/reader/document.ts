/** The parts of an OpenAPI 3.1 document that the page shows, and the resolution of references. */

/** The parts of JSON Schema that the page describes. */
export interface Schema {
  $ref?: string;
  type?: string | readonly string[];
  format?: string;
  const?: unknown;
  enum?: readonly unknown[];
  anyOf?: readonly Schema[];
  oneOf?: readonly Schema[];
  allOf?: readonly Schema[];
  properties?: Readonly<Record<string, Schema>>;
  required?: readonly string[];
  items?: Schema;
  additionalProperties?: boolean | Schema;
  description?: string;
  default?: unknown;
  examples?: readonly unknown[];
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  minItems?: number;
  maxItems?: number;
  pattern?: string;
}

export interface ShownParameter {
  name: string;
  in: string;
  description?: string;
  required?: boolean;
  schema: Schema;
}

export interface MediaType {
  schema: Schema;
  example?: unknown;
}

export interface ShownResponse {
  $ref?: string;
  description?: string;
  content?: Readonly<Record<string, MediaType>>;
}

export interface ShownOperation {
  operationId: string;
  tags?: readonly string[];
  summary?: string;
  description?: string;
  parameters?: readonly ShownParameter[];
  requestBody?: { content: Readonly<Record<string, MediaType>> };
  responses: Readonly<Record<string, ShownResponse>>;
  security?: readonly Readonly<Record<string, readonly string[]>>[];
}

export interface ApiDocument {
  info: { title: string; version: string };
  servers: readonly { url: string }[];
  tags: readonly { name: string; description: string }[];
  paths: Readonly<Record<string, Readonly<Record<string, ShownOperation>>>>;
  webhooks: Readonly<Record<string, { post: ShownOperation }>>;
  components: {
    schemas: Readonly<Record<string, Schema>>;
    responses: Readonly<Record<string, ShownResponse>>;
  };
}

/** An operation with its path and method. */
export interface PlacedOperation extends ShownOperation {
  method: string;
  path: string;
}

/** Operations in the order of the document, by tag. */
export function operationsByTag(document: ApiDocument): ReadonlyMap<string, readonly PlacedOperation[]> {
  const placed = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ ...operation, method, path })),
  );
  return Map.groupBy(placed, ({ tags }) => tags?.[0] ?? '');
}

/** @returns the referenced schema and its name, or the schema itself */
export function resolve(document: ApiDocument, schema: Schema): { schema: Schema; name: string | null } {
  if (schema.$ref === undefined) return { schema, name: null };
  const name = schema.$ref.slice(schema.$ref.lastIndexOf('/') + 1);
  return { schema: document.components.schemas[name] ?? {}, name };
}

export function resolveResponse(document: ApiDocument, response: ShownResponse): ShownResponse {
  if (response.$ref === undefined) return response;
  const name = response.$ref.slice(response.$ref.lastIndexOf('/') + 1);
  return document.components.responses[name] ?? response;
}
