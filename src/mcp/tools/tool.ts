/** A tool: what an agent can call, as `tools/list` describes it, and the function that serves it. */

import type { TSchema } from 'typebox';
import type { Principal } from '../../grants/checked_principal.ts';

/** Hints for people who approve calls. They decide no access. */
export interface ToolAnnotations {
  readonly readOnlyHint: boolean;
  readonly destructiveHint: boolean;
  readonly openWorldHint: boolean;
}

export interface ToolDescription {
  readonly name: string;
  readonly title: string;
  readonly description: string;
  /** Of the arguments: an object. */
  readonly inputSchema: TSchema;
  /** Of the result: an object. */
  readonly outputSchema: TSchema;
  readonly annotations: ToolAnnotations;
  /** A token needs it to see the tool, and to call it. */
  readonly scope: string;
}

export interface ToolCall {
  /** Valid by the input schema. */
  readonly arguments: Record<string, unknown>;
  readonly principal: Principal;
  /** Aborts when the client disconnects. */
  readonly signal: AbortSignal;
}

export interface Tool extends ToolDescription {
  /** Whether missing arguments get the defaults of the input schema. Operations of the API fill in their own, and a merge patch has none. */
  readonly fillsDefaults?: boolean;
  /**
   * @returns a value that is valid by the output schema, or its JSON
   * @throws Problem or ToolError with a sentence for the model; the details of other errors are only logged
   */
  readonly run: (call: ToolCall) => Promise<Record<string, unknown> | JsonText>;
}

/** A result that is JSON already, so that large ones are not parsed and written again. */
export class JsonText {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/**
 * What tools use that call something else. The types are written out, because operators' programs read this file's declarations and
 * should not need those of the server.
 */
export interface ToolServices {
  /** Makes a token for another API (oauth/token_exchange.ts). */
  readonly exchangeToken: (
    principal: Principal,
    target: { audience: string; scopes: readonly string[] },
  ) => Promise<string>;
  /** Reaches public addresses, and those that the operator listed (egress/fetch.ts). */
  readonly fetch: (
    url: URL,
    init: { method: string; headers: Record<string, string>; body: string | undefined; signal: AbortSignal },
  ) => Promise<Response>;
  /** Runs a call when it is the turn of the caller (http/overload/caller.ts) at an API (egress/origin_turns.ts). */
  readonly inTurn: <Result>(url: URL, account: string, call: () => Promise<Result>) => Promise<Result>;
}

/** An error whose message is for the model: a sentence that says what to do differently. The log has its cause, if there is one. */
export class ToolError extends Error {
  override readonly name = 'ToolError';
}

export const toolNameCharactersMax = 64;
export const toolNamePattern = /^[a-z0-9_]+$/;
