/**
 * A model that follows a script instead of thinking: each turn calls a tool, or says something. It sees what a model sees: the tools
 * with their schemas, and the results. A program with a language model replaces this file by a call of its library.
 */

type Json = Record<string, unknown>;

/** As `@ai-sdk/mcp` returns tools. */
export interface Tools {
  [name: string]: { execute: (given: Json, options: { toolCallId: string; messages: [] }) => unknown };
}

type Turn = { tool: string; given: Json } | { text: string };
/** @param last the result of the last tool */
export type Script = readonly ((last: Json) => Turn)[];

interface ToolResult {
  isError?: boolean;
  content: { text?: string }[];
  structuredContent?: Json;
}

/**
 * Runs a conversation.
 * @param onTurn called with each turn in words
 * @returns the result of the last tool
 * @throws Error with the sentence of a tool that failed
 */
export async function converse(tools: Tools, script: Script, onTurn: (text: string) => void): Promise<Json> {
  let last: Json = {};
  for (const [index, next] of script.entries()) {
    const turn = next(last);
    if ('text' in turn) {
      onTurn(`the model says: ${turn.text}`);
      continue;
    }
    const tool = tools[turn.tool];
    if (tool === undefined) throw new Error(`there is no tool ${turn.tool}`);
    const options = { toolCallId: String(index), messages: [] as [] };
    const result = (await tool.execute(turn.given, options)) as ToolResult;
    if (result.isError) throw new Error(`${turn.tool}: ${result.content[0]?.text}`);
    last = result.structuredContent ?? {};
    onTurn(`the model called ${turn.tool}(${JSON.stringify(turn.given)})`);
  }
  return last;
}
