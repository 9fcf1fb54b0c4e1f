/**
 * The description of an API operation: who may call it, its parameters, body and responses. Each room that serves operations
 * describes them in this form, and the reference is built from the descriptions.
 */

import type { TSchema } from 'typebox';

export interface Parameter {
  name: string;
  in: 'path' | 'query' | 'header';
  description: string;
  schema: TSchema;
  required?: boolean;
}

export interface ResponseDescription {
  description: string;
  /** A named schema. */
  schema?: TSchema;
  example?: unknown;
  /** Names of headers, without those of every response. */
  headers?: readonly string[];
}

export interface BodyDescription<Schema extends TSchema = TSchema> {
  required: boolean;
  /** Media types that the operation accepts. */
  types: readonly string[];
  /** A named schema, which also validates the body. */
  schema: Schema;
  example?: unknown;
  /** Maximum size in bytes, if it differs from that of other bodies. */
  bytesMax?: number;
  /** Whether the body is no JSON. The handler reads it then, and the schema only describes it. */
  isRaw?: boolean;
  /** Schemas and examples of media types with a form of their own. */
  otherTypes?: Readonly<Record<string, { schema: TSchema; example?: unknown }>>;
}

/**
 * Who may call an operation:
 * - `anyone`, without a token
 * - `token`: every access token with the scopes
 * - `member`: an access token with the scopes; the handler decides by the account's role in the app
 * - `machine`: a client of the operator that acts for itself and is registered for the scopes
 * - `administrator`: an administrator, or a client of the operator that acts for itself, with the scope `admin`
 */
export type Audience = 'anyone' | 'token' | 'member' | 'machine' | 'administrator';

export interface AdmissionRule {
  readonly audience: Audience;
  /** All of these scopes are required. Empty: any token, or none for `anyone`. */
  readonly scopes: readonly string[];
}

export interface Operation {
  id: string;
  method: 'get' | 'put' | 'post' | 'delete' | 'patch';
  /** With a placeholder `{name}` for each parameter. */
  path: string;
  tag: string;
  /** A few words, for the table of contents and headings. */
  summary: string;
  /** Full sentences, if the summary is not enough. */
  description?: string;
  admission: AdmissionRule;
  parameters?: readonly Parameter[];
  body?: BodyDescription;
  responses: Readonly<Record<number, ResponseDescription>>;
  /** Whether the response can also be server-sent events. */
  streamsEvents?: boolean;
  /** Statuses of problems, without those of every operation with a token and those of every body. */
  problems?: readonly number[];
}

/** The contribution of one room to the reference. */
export interface ReferencePart {
  operations: readonly Operation[];
  tags: readonly { name: string; description: string }[];
}

/** The media types that an operation accepts. */
export function bodyTypes({ types, otherTypes = {} }: BodyDescription): string[] {
  return [...types, ...Object.keys(otherTypes)];
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** What the route serves. Absent for routes outside the API. */
    operation?: Operation;
  }
}
