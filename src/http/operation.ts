/**
 * An operation of the API as the reference describes it: what it takes, what it needs, and every answer that it
 * gives. The parts of the house that serve operations describe them in this form.
 */

import type { TSchema } from 'typebox';

export interface Parameter {
  name: string;
  in: 'path' | 'query' | 'header';
  description: string;
  schema: TSchema;
  required?: boolean;
}

export interface AnswerDescription {
  description: string;
  /** Name of a schema among the reference's own. */
  schema?: string;
  example?: unknown;
  /** Names of headers beside those of every answer. */
  headers?: readonly string[];
}

export interface Operation {
  id: string;
  method: 'get' | 'put' | 'post' | 'delete' | 'patch';
  /** With `{name}` for each parameter in it. */
  path: string;
  tag: string;
  /** A few words, for contents and headings. */
  summary: string;
  /** Sentences, where the summary does not say it all. */
  description?: string;
  /** Every one of these is needed; null: no token at all. */
  scopes: readonly string[] | null;
  parameters: readonly Parameter[];
  body?: {
    required: boolean;
    /** By media type: name of a schema, and an example. */
    content: Readonly<Record<string, { schema: string; example?: unknown }>>;
  };
  answers: Readonly<Record<number, AnswerDescription>>;
  /** Statuses of problems beside those that every operation with a token has. */
  problems: readonly number[];
}

/** What a part of the house brings to the reference. */
export interface ReferencePart {
  operations: readonly Operation[];
  /** By name. */
  schemas: Readonly<Record<string, TSchema>>;
  tags: readonly { name: string; description: string }[];
}
