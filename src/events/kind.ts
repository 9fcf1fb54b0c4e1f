/**
 * Event kinds. Each has a schema for its body and names the object whose `read:` scope a subscriber needs.
 */

import type { TSchema } from 'typebox';

export interface EventKind {
  /** Words separated by dots, like `article.published`. */
  name: string;
  description: string;
  /** The object of the required `read:<object>` scope. Null if no scope is required. */
  object: string | null;
  /** JSON Schema of the body. */
  schema: TSchema;
  /** A body that matches the schema. The reference shows it, and `nuncio trigger` sends it. */
  example: unknown;
}

/** Declares a kind in `nuncio.config.ts`. */
export function defineEventKind(kind: EventKind): EventKind {
  return Object.freeze({ ...kind });
}
