/**
 * Event kinds. Each has a schema for its body and names the object whose `read:` scope a subscriber needs.
 */

import type { TSchema } from 'typebox';

/** A version that was replaced by a newer one. */
export interface EarlierVersion {
  /** JSON Schema of the body in this version. */
  schema: TSchema;
  /**
   * Returns the body of this version, given that of the next newer one. It may change its argument. It must depend on nothing else,
   * so that every attempt has the same body.
   */
  // biome-ignore lint/suspicious/noExplicitAny: the author knows the type by the schema of the next newer version
  from: (body: any) => unknown;
  /** The date from which subscriptions should no longer use the version (RFC 9745), such as `2026-10-01`. */
  deprecation?: string;
  /** The date from which the version may be gone (RFC 8594). */
  sunset?: string;
}

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
  /**
   * Link of the resource that the event is about, for subscriptions with `format: "thin"`: a path of this server or an `https`
   * URL, with JSON pointers of the body in braces, such as `/articles/{/article/id}`. Default: no link.
   */
  resource?: string;
  /** The date of the newest version, which `schema` and `example` describe. Publishers send this version. */
  version?: string;
  /** Earlier versions by their dates, for subscriptions that were made when they were the newest. */
  versions?: Readonly<Record<string, EarlierVersion>>;
}

/** The members of a declaration. */
export const kindMembers: Readonly<Record<keyof EventKind, true>> = {
  name: true,
  description: true,
  object: true,
  schema: true,
  example: true,
  resource: true,
  version: true,
  versions: true,
};

/** The members of an earlier version. */
export const versionMembers: Readonly<Record<keyof EarlierVersion, true>> = {
  schema: true,
  from: true,
  deprecation: true,
  sunset: true,
};

/** Declares a kind in `nuncio.config.ts`. */
export function defineEventKind(kind: EventKind): EventKind {
  return Object.freeze({ ...kind });
}
