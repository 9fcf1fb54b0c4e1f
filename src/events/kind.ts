/**
 * Event kinds: the catalogue of what can happen, each with the schema of its body and the object whose `read:`
 * scope one needs to hear of it.
 */

import type { TSchema } from 'typebox';

export interface EventKind {
  /** Words divided by dots, like `article.published`. */
  name: string;
  description: string;
  /** The object of the `read:<object>` scope one needs to get it; null for none. */
  object: string | null;
  /** JSON Schema of the body. */
  schema: TSchema;
  /** A body that the schema accepts: documentation, and what `nuncio trigger` sends. */
  example: unknown;
}

/** Declares a kind; for `nuncio.config.ts`. */
export function defineEventKind(kind: EventKind): EventKind {
  return Object.freeze({ ...kind });
}
