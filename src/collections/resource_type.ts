/**
 * A resource type: a compiled declaration. Routes, statements, schemas, event kinds and the reference are all derived from
 * it.
 */

import type { TSchema } from 'typebox';
import type { EventKind } from '../events/kind.ts';
import type { ColumnType } from './column.ts';
import type { LifecycleEvent, now } from './declaration.ts';
import type { ToolOptions } from './tool_options.ts';

/** Reports a problem of a declaration. */
export type Report = (place: string, reason: string) => void;

export interface Field {
  name: string;
  schema: TSchema;
  column: ColumnType;
  nullable: boolean;
  /** Who sets the field: the client at any time, the client at creation, or the server. */
  set: 'client' | 'create' | 'server';
  /** The value if omitted. Undefined means that the field is required. */
  default: unknown;
}

/** Conditions on fields: each must have one of its values. */
export type Conditions = readonly { field: Field; values: readonly unknown[] }[];

export interface ResourceAction {
  name: string;
  description: string;
  guard: Conditions;
  refusal: string;
  input: readonly Field[];
  change: readonly { field: Field; value: unknown | typeof now }[];
  /** The complete event kind, such as `article.published`. */
  emits: string | null;
}

/** A link whose resources can be embedded in a response. */
export interface Expansion {
  /** Name of the link. */
  name: string;
  /** The embedded type: a sub-collection, of which a page is embedded, or the parent. */
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
  /** Resources of other users that a user may read. */
  readable: 'owner' | 'all' | Conditions;
  actions: readonly ResourceAction[];
  /** Changes that publish an event. */
  events: ReadonlySet<LifecycleEvent>;
  /** `author` or a field's name. */
  filters: readonly string[];
  /** `created_at`, `updated_at` or a field's name. */
  sorts: readonly string[];
  example: Readonly<Record<string, unknown>>;
  /** The versions of its events' bodies. */
  bodies: Pick<EventKind, 'version' | 'versions'>;
  /** For a sub-collection: the type it belongs to. */
  parent: ResourceType | null;
  /** For a sub-collection: who may add resources. */
  createdBy: 'readers' | 'owner';
  /** For a sub-collection: how many resources an account may add per minute to parents of others. */
  addedPerMinute: number;
  children: readonly ResourceType[];
  expansions: readonly Expansion[];
  /** The tools that agents get. */
  tools: ToolOptions;
  /**
   * A hash of everything that shapes a response. It is part of every entity tag, so that tags become stale when the
   * declaration changes.
   */
  fingerprint: string;
}

/** Whether resources of this type can change. Those of sub-collections cannot. */
export function isChangeable(type: ResourceType): boolean {
  return type.parent === null;
}

/** A type and its sub-collections, parents first. */
export function withChildren(type: ResourceType): ResourceType[] {
  return [type, ...type.children];
}
