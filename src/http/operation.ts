/**
 * The description of an API operation: its parameters, scopes, body and responses. Each room that serves operations
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
  /** Name of a schema of the reference. */
  schema?: string;
  example?: unknown;
  /** Names of headers, without those of every response. */
  headers?: readonly string[];
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
  /** All of these scopes are required. Null: no token needed. */
  scopes: readonly string[] | null;
  parameters: readonly Parameter[];
  body?: {
    required: boolean;
    /** Schema name and example by media type. */
    content: Readonly<Record<string, { schema: string; example?: unknown }>>;
  };
  responses: Readonly<Record<number, ResponseDescription>>;
  /** Statuses of problems, without those of every operation with a token. */
  problems: readonly number[];
}

/** The contribution of one room to the reference. */
export interface ReferencePart {
  operations: readonly Operation[];
  /** By name. */
  schemas: Readonly<Record<string, TSchema>>;
  tags: readonly { name: string; description: string }[];
}
