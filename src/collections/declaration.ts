/**
 * Declaring a collection: what an operator writes in `nuncio.config.ts`. A collection is a name, the object of its
 * scopes, typed fields, sub-collections, actions and events; everything else (table, routes, schemas, event
 * kinds, reference) follows from it. Field names are typed through: a guard, a change or a filter that names a
 * field which does not exist does not compile.
 */

import Type, { type Static, type TSchema } from 'typebox';

/** In an action's change: the moment at which it is made. */
export const now: unique symbol = Symbol('now');

/** A field that the server alone sets: at creation to `initial`, later by actions. */
export interface ServerSet<S extends TSchema> {
  readonly set: 'server';
  readonly schema: S;
  readonly initial: Static<S>;
}

/** A field that is given at creation and never changed. */
export interface CreateOnly<S extends TSchema> {
  readonly set: 'create';
  readonly schema: S;
}

/**
 * A TypeBox schema of a string, integer, number, boolean, array or object, or one of these or null. A field with a
 * `default` may be left out; one that may be null and has no default is null when left out.
 */
export type FieldDeclaration = TSchema | ServerSet<TSchema> | CreateOnly<TSchema>;
export type Fields = Readonly<Record<string, FieldDeclaration>>;

type SchemaOf<D> =
  D extends ServerSet<infer S> ? S : D extends CreateOnly<infer S> ? S : D extends TSchema ? D : never;

/** The values of a resource's declared fields. */
export type ValuesOf<F extends Fields> = { readonly [K in keyof F]: Static<SchemaOf<F[K]>> };

/** Fields with the value, or one of the values, that each must have. */
export type Match<F extends Fields> = {
  readonly [K in keyof F]?: ValuesOf<F>[K] | readonly ValuesOf<F>[K][];
};

type Change<F extends Fields> = { readonly [K in keyof F]?: ValuesOf<F>[K] | typeof now };

type Names<F extends Fields> = readonly (keyof F & string)[];

export interface Action<F extends Fields> {
  description?: string;
  /** What the resource must be like; otherwise 409 with `refusal`. Also decides whether its link is shown. */
  guard?: Match<F>;
  /** The sentence of the 409. */
  refusal?: string;
  /** Fields that the request's body may give for this action, all of them server-set. */
  input?: Names<F>;
  change: Change<F>;
  /** The event that tells of it: `published` makes the kind `article.published`. */
  emits?: string;
}

export type LifeEvent = 'created' | 'updated' | 'deleted';

interface Common<F extends Fields> {
  /** Lower-case plural, the last part of the path: `articles`. */
  name: string;
  /** Lower-case singular: names the event kinds and the key in event bodies. */
  item: string;
  description?: string;
  fields: F;
  /** Changes that are told of as events. */
  events?: readonly LifeEvent[];
  /** Fields that `?<field>=<value>` may select by; `author` too. Each gets an index. */
  filters?: readonly ((keyof F & string) | 'author')[];
  /**
   * Links whose resources `?expand=<name>` embeds in the answer: of a collection its sub-collections by their names, of
   * a sub-collection what it belongs to, by that one's `item`.
   */
  expansions?: readonly string[];
  /** Fields that `?sort=<field>` and `?sort=-<field>` may order by. Each gets an index. */
  sorts?: readonly ((keyof F & string) | 'created_at' | 'updated_at')[];
  /** Writable fields of one resource, for the reference and the examples of events. */
  example: { readonly [K in keyof F]?: ValuesOf<F>[K] };
}

export interface CollectionDeclaration<F extends Fields> extends Common<F> {
  /** The object of `read:<object>` and `write:<object>`. */
  scope: string;
  /**
   * Whose resources one may read beside one's own: nobody's (`owner`, the default), everybody's (`all`), or
   * everybody's that match.
   */
  readable?: 'owner' | 'all' | Match<F>;
  children?: readonly Child[];
  actions?: Readonly<Record<string, Action<NoInfer<F>>>>;
}

/** A sub-collection: seen by whoever sees its parent, gone with it; its events belong to the parent's owner. */
export interface ChildDeclaration<F extends Fields> extends Common<F> {
  /** Who may add: whoever may see the parent (the default), or its owner alone. */
  createdBy?: 'readers' | 'owner';
}

declare const declared: unique symbol;

/** A declaration whose field types have done their work. */
export interface Collection {
  readonly [declared]: 'collection';
}
export interface Child {
  readonly [declared]: 'child';
}

/** The loosest form of what the two functions below take: what the compiler of declarations reads. */
export type AnyCollectionDeclaration = CollectionDeclaration<Fields>;
export type AnyChildDeclaration = ChildDeclaration<Fields>;

const collections = new WeakSet<object>();
const children = new WeakSet<object>();

/** Declares a collection. What is wrong in it is reported when the platform is loaded, all at once. */
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

/** The declaration again, or undefined for what did not come out of `defineCollection`. */
export function readCollection(value: unknown): AnyCollectionDeclaration | undefined {
  return typeof value === 'object' && value !== null && collections.has(value)
    ? (value as AnyCollectionDeclaration)
    : undefined;
}

/** The declaration again, or undefined for what did not come out of `defineChild`. */
export function readChild(value: unknown): AnyChildDeclaration | undefined {
  return typeof value === 'object' && value !== null && children.has(value)
    ? (value as AnyChildDeclaration)
    : undefined;
}

/** @param initial its value in a new resource */
export function serverSet<const S extends TSchema>(schema: S, initial: Static<S>): ServerSet<S> {
  return Object.freeze({ set: 'server', schema, initial });
}

export function createOnly<const S extends TSchema>(schema: S): CreateOnly<S> {
  return Object.freeze({ set: 'create', schema });
}

/** A time: RFC 3339, answered in UTC with milliseconds. */
export function Timestamp() {
  return Type.String({ format: 'date-time' });
}

/** The schema's values, or null. */
export function Nullable<const S extends TSchema>(schema: S) {
  return Type.Union([schema, Type.Null()]);
}
