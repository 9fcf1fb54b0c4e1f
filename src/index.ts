/**
 * The public API for the platform's configuration (`nuncio.config.ts`).
 */

export { default as Type, type Static } from 'typebox';
export {
  type Action,
  type ChildDeclaration,
  type CollectionDeclaration,
  createOnly,
  defineChild,
  defineCollection,
  Nullable,
  now,
  serverSet,
  Timestamp,
} from './collections/declaration.ts';
export { defineEventKind, type EventKind } from './events/kind.ts';
export { defineConfig, type PlatformDeclaration } from './platform.ts';
