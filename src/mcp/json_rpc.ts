/** JSON-RPC 2.0, as the Model Context Protocol uses it: one message per request, and no batches. */

import { parseJson } from '../http/json.ts';
import { Problem } from '../http/problem.ts';

/** A text of at most `idCharactersMax`. */
export type RequestId = string | number;

/** Maximum UTF-16 code units of a request's id. Each event of a stream repeats it. */
const idCharactersMax = 256;

export interface RpcRequest {
  /** Undefined for a notification, which gets no response. */
  id: RequestId | undefined;
  method: string;
  params: Readonly<Record<string, unknown>>;
}

/** JSON-RPC 2.0 section 5.1, and the codes of the protocol version 2026-07-28. */
export const rpcCodes = {
  parseError: -32_700,
  invalidRequest: -32_600,
  methodNotFound: -32_601,
  invalidParams: -32_602,
  headerMismatch: -32_020,
  unsupportedVersion: -32_022,
} as const;

/** An error response of the protocol. */
export class RpcError extends Error {
  override readonly name = 'RpcError';
  readonly code: number;
  /** HTTP status. */
  readonly status: number;
  readonly data: unknown;
  /** The id of the request, where it is known before the message is. */
  readonly id: RequestId | undefined;

  /** @param message a sentence for the client, without internal details */
  constructor(
    code: number,
    message: string,
    { status = 200, data, id }: { status?: number; data?: unknown; id?: RequestId | undefined } = {},
  ) {
    super(message);
    this.code = code;
    this.status = status;
    this.data = data;
    this.id = id;
  }
}

export function invalidParams(message: string): RpcError {
  return new RpcError(rpcCodes.invalidParams, message);
}

/**
 * Reads the message of a request body.
 * @throws RpcError with status 400 for anything but one request or notification
 */
export function readMessage(bytes: Buffer): RpcRequest {
  const message = parse(bytes);
  if (Array.isArray(message)) throw invalid('Batches are not supported: send one message per request.');
  if (!isObject(message)) throw invalid('The body must be a JSON-RPC message.');
  const { jsonrpc, method, id, params } = message;
  const known = isId(id) ? id : undefined;
  if (jsonrpc !== '2.0') throw invalid('jsonrpc must be "2.0".', known);
  if (typeof method !== 'string') throw invalid('The message must be a request or a notification.', known);
  if (Object.hasOwn(message, 'id') && known === undefined) {
    throw invalid(`id must be a string of at most ${idCharactersMax} characters, or a number.`);
  }
  if (params !== undefined && !isObject(params)) throw invalid('params must be an object.', known);
  return { id: known, method, params: params ?? {} };
}

function parse(bytes: Buffer): unknown {
  try {
    const value = parseJson(bytes);
    if (value !== undefined) return value;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status !== 400 || error.code !== 'not-json') throw invalid(sentencesOf(error));
  }
  throw new RpcError(rpcCodes.parseError, 'The body is not JSON.', { status: 400 });
}

/** JSON that is refused although it is well-formed: duplicate members, deep nesting, text that cannot be stored. */
function sentencesOf({ message, errors = [] }: Problem): string {
  return [message, ...errors.map((each) => `${each.pointer} ${each.message}.`)].join(' ');
}

function invalid(message: string, id?: RequestId): RpcError {
  return new RpcError(rpcCodes.invalidRequest, message, { status: 400, id });
}

function isId(value: unknown): value is RequestId {
  return typeof value === 'number' || (typeof value === 'string' && value.length <= idCharactersMax);
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** @param id undefined if the request could not be read (JSON-RPC 2.0 section 5: null) */
export function errorResponse(error: RpcError, id: RequestId | undefined): object {
  const { code, message, data } = error;
  return {
    jsonrpc: '2.0',
    id: id ?? null,
    error: { code, message, ...(data === undefined ? {} : { data }) },
  };
}

/** Members of a result that are JSON already: to parse and write a megabyte takes tens of milliseconds. JSON.stringify leaves them out. */
export const writtenMembers = Symbol('members as JSON');

export type WithWrittenMembers = {
  /** By name. */
  [writtenMembers]?: Readonly<Record<string, string>>;
};

/** Writes the response to a request. */
export function responseText(response: { jsonrpc: '2.0'; id: RequestId; result: object }): string {
  const text = JSON.stringify(response);
  const written = Object.entries((response.result as WithWrittenMembers)[writtenMembers] ?? {});
  // The result is the last member, and not empty.
  const members = written.map(([name, json]) => `,${JSON.stringify(name)}:${json}`).join('');
  return members === '' ? text : `${text.slice(0, -2)}${members}}}`;
}
