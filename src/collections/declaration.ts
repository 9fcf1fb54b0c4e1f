/**
 * Declarations of collections in `nuncio.config.ts`. A declaration has a name, the object of its scopes, typed fields,
 * sub-collections, actions and events. The table, routes, schemas, event kinds and reference are derived from it. A guard,
 * change or filter that names an unknown field does not compile.
 */

import Type, { type Static, type TSchema } from 'typebox';
import type { EarlierVersion } from '../events/kind.ts';
import type { ChildTools, CollectionTools } from './tool_options.ts';

/** In an action's change: the time of the action. */
export const now: unique symbol = Symbol('now');

/** A field that only the server sets: to `initial` at creation, later by actions. */
export interface ServerSet<S extends TSchema> {
  readonly set: 'server';
  readonly schema: S;
  readonly initial: Static<S>;
}

/** A field that the client sets at creation and that never changes. */
export interface CreateOnly<S extends TSchema> {
  readonly set: 'create';
  readonly schema: S;
}

/**
 * A TypeBox schema of a string, integer, number, boolean, array or object, optionally nullable. A field with a `default` is
 * optional in requests. A nullable field without a default is null when omitted.
 */
export type FieldDeclaration = TSchema | ServerSet<TSchema> | CreateOnly<TSchema>;
export type Fields = Readonly<Record<string, FieldDeclaration>>;

type SchemaOf<D> =
  D extends ServerSet<infer S> ? S : D extends CreateOnly<infer S> ? S : D extends TSchema ? D : never;

/** The values of a resource's declared fields. */
export type ValuesOf<F extends Fields> = { readonly [K in keyof F]: Static<SchemaOf<F[K]>> };

/** Required values by field: one value, or a list of alternatives. */
export type Match<F extends Fields> = {
  readonly [K in keyof F]?: ValuesOf<F>[K] | readonly ValuesOf<F>[K][];
};

type Change<F extends Fields> = { readonly [K in keyof F]?: ValuesOf<F>[K] | typeof now };

type Names<F extends Fields> = readonly (keyof F & string)[];

export interface Action<F extends Fields> {
  description?: string;
  /** Required state of the resource. Otherwise the response is 409 with `refusal`, and the action has no link. */
  guard?: Match<F>;
  /** The detail of the 409. */
  refusal?: string;
  /** Server-set fields that the request body of this action may contain. */
  input?: Names<F>;
  change: Change<F>;
  /** The event to publish: `published` defines the kind `article.published`. */
  emits?: string;
}

export type LifecycleEvent = 'created' | 'updated' | 'deleted';

interface Common<F extends Fields> {
  /** Lower-case plural, the last part of the path, such as `articles`. */
  name: string;
  /** Lower-case singular, used in event kinds and as the key in event bodies. */
  item: string;
  description?: string;
  fields: F;
  /** Changes that publish an event. */
  events?: readonly LifecycleEvent[];
  /** Fields, or `author`, that clients can filter by with `?<field>=<value>`. Each gets an index. */
  filters?: readonly ((keyof F & string) | 'author')[];
  /**
   * Links that `?expand=<name>` embeds in the response. For a collection, names of its sub-collections; for a
   * sub-collection, the `item` of its parent.
   */
  expansions?: readonly string[];
  /** Fields that clients can sort by with `?sort=<field>` and `?sort=-<field>`. Each gets an index. */
  sorts?: readonly ((keyof F & string) | 'created_at' | 'updated_at')[];
  /** The date of the newest version of its events' bodies, in which they have the fields declared here. */
  version?: string;
  /** Earlier versions of its events' bodies by their dates, the same for all of its kinds. */
  versions?: Readonly<Record<string, EarlierVersion>>;
  /** Example values of writable fields, for the reference and for example events. */
  example: { readonly [K in keyof F]?: ValuesOf<F>[K] };
}

export interface CollectionDeclaration<F extends Fields> extends Common<F> {
  /** The object of `read:<object>` and `write:<object>`. */
  scope: string;
  /**
   * Resources of other users that a user may read: none (`owner`, the default), all (`all`), or those that match.
   */
  readable?: 'owner' | 'all' | Match<F>;
  children?: readonly Child[];
  actions?: Readonly<Record<string, Action<NoInfer<F>>>>;
  /** Names, descriptions and absence of the tools that agents get at `/mcp`. False for none of this collection. */
  mcp?: CollectionTools | false;
}

/** A sub-collection. Users who can read the parent can read it. It is deleted with the parent. Its events belong to the parent's owner. */
export interface ChildDeclaration<F extends Fields> extends Common<F> {
  /** Who may add resources: all users who can read the parent (the default), or only its owner. */
  createdBy?: 'readers' | 'owner';
  /**
   * How many resources an account may add per minute, with all its apps, to parents of other accounts. Default: 60. Each of their events uses the
   * queues of the parent's owner.
   */
  addedPerMinute?: number;
  /** As of a collection, for its tools `list` and `create`. */
  mcp?: ChildTools | false;
}

declare const declared: unique symbol;

/** A declaration. Its field types were checked where it was declared. */
export interface Collection {
  readonly [declared]: 'collection';
}
export interface Child {
  readonly [declared]: 'child';
}

/** Declarations with any fields, as `compile.ts` reads them. */
export type AnyCollectionDeclaration = CollectionDeclaration<Fields>;
export type AnyChildDeclaration = ChildDeclaration<Fields>;

const commonMembers = {
  name: true,
  item: true,
  description: true,
  fields: true,
  events: true,
  filters: true,
  expansions: true,
  sorts: true,
  version: true,
  versions: true,
  example: true,
  mcp: true,
} as const;
/** The members of declarations. */
export const collectionMembers: Readonly<Record<keyof AnyCollectionDeclaration, true>> = {
  ...commonMembers,
  scope: true,
  readable: true,
  children: true,
  actions: true,
};
export const childMembers: Readonly<Record<keyof AnyChildDeclaration, true>> = {
  ...commonMembers,
  createdBy: true,
  addedPerMinute: true,
};
export const actionMembers: Readonly<Record<keyof Action<Fields>, true>> = {
  description: true,
  guard: true,
  refusal: true,
  input: true,
  change: true,
  emits: true,
};

/**
 * The declarations made here. `Collection` and `Child` are opaque to the platform's author, so declarations are cast to them;
 * `readCollection` and `readChild` convert back what these sets contain.
 */
const collections = new WeakSet<object>();
const children = new WeakSet<object>();

/** Declares a collection. Loading the platform reports all its errors at once. */
export function defineCollection<const F extends Fields>(declaration: CollectionDeclaration<F>): Collection {
  const copy = Object.freeze({ ...declaration });
  collections.add(copy);
  return copy as unknown as Collection;
}

/** Declares a sub-collection. */
export function defineChild<const F extends Fields>(declaration: ChildDeclaration<F>): Child {
  const copy = Object.freeze({ ...declaration });
  children.add(copy);
  return copy as unknown as Child;
}

/** Returns the declaration, or undefined if `defineCollection` did not create the value. */
export function readCollection(value: unknown): AnyCollectionDeclaration | undefined {
  return typeof value === 'object' && value !== null && collections.has(value)
    ? (value as AnyCollectionDeclaration)
    : undefined;
}

/** Returns the declaration, or undefined if `defineChild` did not create the value. */
export function readChild(value: unknown): AnyChildDeclaration | undefined {
  return typeof value === 'object' && value !== null && children.has(value)
    ? (value as AnyChildDeclaration)
    : undefined;
}

/** @param initial the value in a new resource */
export function serverSet<const S extends TSchema>(schema: S, initial: Static<S>): ServerSet<S> {
  return Object.freeze({ set: 'server', schema, initial });
}

export function createOnly<const S extends TSchema>(schema: S): CreateOnly<S> {
  return Object.freeze({ set: 'create', schema });
}

/** A time in RFC 3339 format. Responses use UTC with milliseconds. */
export function Timestamp() {
  return Type.String({ format: 'date-time' });
}

/** Adds null to a schema. */
export function Nullable<const S extends TSchema>(schema: S) {
  return Type.Union([schema, Type.Null()]);
}
