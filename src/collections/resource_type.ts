/**
 * A resource type: what a declaration means, worked out once at start. Everything else of this folder reads this
 * form: routes, statements, schemas, event kinds, reference.
 */

import type { TSchema } from 'typebox';
import type { ColumnType } from './column.ts';
import type { LifeEvent, now } from './declaration.ts';

export interface Field {
  name: string;
  schema: TSchema;
  column: ColumnType;
  nullable: boolean;
  /** Who sets it: the client at any time, the client at creation, or the server. */
  set: 'client' | 'create' | 'server';
  /** What it is when not given; undefined: it must be given. */
  default: unknown;
}

/** Values that fields must have, each one of several. */
export type Conditions = readonly { field: Field; values: readonly unknown[] }[];

export interface ResourceAction {
  name: string;
  description: string;
  guard: Conditions;
  refusal: string;
  input: readonly Field[];
  change: readonly { field: Field; value: unknown | typeof now }[];
  /** The event's whole kind, like `article.published`. */
  emits: string | null;
}

/** A link whose resources may be embedded in the answer. */
export interface Expansion {
  /** The link's name. */
  name: string;
  /** What is embedded: a page of a sub-collection, or the resource that one of a sub-collection belongs to. */
  type: ResourceType;
}

export interface ResourceType {
  name: string;
  item: string;
  description: string;
  /** The object of the scopes. */
  scope: string;
  readScope: string;
  writeScope: string;
  table: string;
  fields: readonly Field[];
  /** Whose resources one may read beside one's own. */
  readable: 'owner' | 'all' | Conditions;
  actions: readonly ResourceAction[];
  /** Changes that are told of. */
  events: ReadonlySet<LifeEvent>;
  /** `author` or a field's name. */
  filters: readonly string[];
  /** `created_at`, `updated_at` or a field's name. */
  sorts: readonly string[];
  example: Readonly<Record<string, unknown>>;
  /** The type that this one is a sub-collection of. */
  parent: ResourceType | null;
  /** Of a sub-collection: who may add. */
  createdBy: 'readers' | 'owner';
  children: readonly ResourceType[];
  expansions: readonly Expansion[];
  /**
   * Changes with everything that shapes an answer: part of every entity tag, so that a tag from before a new
   * declaration does not fit after it.
   */
  fingerprint: string;
}

/** Columns that every resource has, in a table of its own. */
export const standardColumns = ['id', 'author', 'version', 'created_at', 'updated_at'] as const;

/** Whether a resource of this type can change after it was made: a sub-collection's cannot. */
export function isChangeable(type: ResourceType): boolean {
  return type.parent === null;
}

/** A type and its sub-collections, parents first. */
export function withChildren(type: ResourceType): ResourceType[] {
  return [type, ...type.children];
}
