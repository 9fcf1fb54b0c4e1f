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
export type { ChildTools, CollectionTools, ToolOption } from './collections/tool_options.ts';
export { defineEventKind, type EarlierVersion, type EventKind } from './events/kind.ts';
export type { ApiTarget } from './mcp/tools/api_tool.ts';
export {
  type ApiToolDeclaration,
  type DefinedTool,
  defineTool,
  type ToolContext,
  type ToolDeclaration,
  type ToolPrincipal,
} from './mcp/tools/define_tool.ts';
export { ToolError } from './mcp/tools/tool.ts';
export { defineConfig, type PlatformDeclaration } from './platform.ts';
