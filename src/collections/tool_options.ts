/**
 * The option `mcp` of a declaration: names and descriptions of the tools that agents get for it, where the generated ones do not fit,
 * and which tools they do not get. compile_tools.ts checks it, and src/mcp makes the tools.
 */

/** False: agents do not get the tool. */
export type ToolOption = { readonly name?: string; readonly description?: string } | false;

/** Tools of a sub-collection. */
export interface ChildTools {
  readonly list?: ToolOption;
  readonly create?: ToolOption;
}

/** Tools of a collection. */
export interface CollectionTools<Action extends string = string> extends ChildTools {
  readonly get?: ToolOption;
  readonly update?: ToolOption;
  readonly delete?: ToolOption;
  readonly actions?: { readonly [Name in Action]?: ToolOption };
}

/** The compiled option: by the operation's name, such as `list` or `actions.publish`; false hides all tools. */
export type ToolOptions = ReadonlyMap<string, ToolOption> | false;
