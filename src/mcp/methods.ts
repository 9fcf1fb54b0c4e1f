/** The methods of the protocol: what each returns. */

import type { FastifyRequest } from 'fastify';
import type { Guard, Principal } from '../grants/principal.ts';
import { holderOf, type StreamSlots } from '../http/stream_slots.ts';
import { version } from '../version.ts';
import type { AgentEvents } from './events/agent_events.ts';
import { invalidParams, isObject, RpcError, type RpcRequest, rpcCodes } from './json_rpc.ts';
import { type Era, negotiate, serverInfoKey, supportedVersions } from './protocol.ts';
import { requireScope } from './scope.ts';
import type { Tool, ToolDescription } from './tools/tool.ts';
import { callTool } from './tools/tool_call.ts';

export interface McpOptions {
  /** The operator's name, as clients show it. */
  name: string;
  /** Authenticates requests, and counts them against their rate limits. */
  guard: Guard;
  /** By name, in the order of the list. */
  tools: ReadonlyMap<string, Tool>;
  /** Of tool calls in progress. */
  calls: StreamSlots;
  events: AgentEvents;
}

export interface MethodCall {
  message: RpcRequest;
  era: Era;
  principal: Principal;
  request: FastifyRequest;
  /** @returns a signal that aborts when the client disconnects. Most methods need none */
  signal: () => AbortSignal;
}

type Result = Record<string, unknown>;
type Method = (options: McpOptions, call: MethodCall) => Result | Promise<Result>;

/** Only what exists is announced. Clients look for events in one place or the other. */
const capabilities = { tools: {}, events: {}, extensions: { 'io.modelcontextprotocol/events': {} } };

/** How long clients may keep what depends on the grant alone. */
const cached = { ttlMs: 60_000, cacheScope: 'private' };

const toolsPerPage = 100;

const shared: [string, Method][] = [
  ['tools/list', listTools],
  ['tools/call', runTool],
  ['events/list', ({ events, guard }, call) => events.list({ ...call, guard })],
  ['events/poll', ({ events, guard }, call) => events.poll({ ...call, guard })],
  ['events/subscribe', ({ events, guard }, call) => events.subscribe({ ...call, guard })],
  ['events/unsubscribe', ({ events, guard }, call) => events.unsubscribe({ ...call, guard })],
];

const methods: Readonly<Record<Era, ReadonlyMap<string, Method>>> = {
  stateless: new Map<string, Method>([
    ['server/discover', () => ({ supportedVersions, capabilities, ...cached })],
    ...shared,
  ]),
  initialized: new Map<string, Method>([['initialize', initialize], ['ping', () => ({})], ...shared]),
};

/**
 * Runs a method.
 * @returns the result, as the version of the client has it
 * @throws RpcError, or Problem 403 if the token lacks a scope
 */
export async function runMethod(options: McpOptions, call: MethodCall): Promise<Result> {
  const { method } = call.message;
  const run = methods[call.era].get(method);
  if (run === undefined) {
    throw new RpcError(rpcCodes.methodNotFound, 'Method not found.', {
      status: call.era === 'stateless' ? 404 : 200,
    });
  }
  const result = await run(options, call);
  return call.era === 'stateless' ? completeResult(options, result) : result;
}

/** Adds what every result has since 2026-07-28. */
export function completeResult({ name }: Pick<McpOptions, 'name'>, result: Result): Result {
  const serverInfo = { [serverInfoKey]: { name, version } };
  const meta = isObject(result._meta) ? { ...result._meta, ...serverInfo } : serverInfo;
  return { resultType: 'complete', ...result, _meta: meta };
}

function initialize({ name }: McpOptions, { message }: MethodCall): Result {
  const { protocolVersion } = message.params;
  if (typeof protocolVersion !== 'string') throw invalidParams('protocolVersion must be a string.');
  return { protocolVersion: negotiate(protocolVersion), capabilities, serverInfo: { name, version } };
}

function listTools({ tools }: McpOptions, { message, era, principal }: MethodCall): Result {
  const listed = [...tools.values()].filter(({ scope }) => principal.scopes.has(scope));
  const start = readCursor(message.params.cursor, listed);
  const page = listed.slice(start, start + toolsPerPage);
  const last = page.at(-1);
  const hasMore = last !== undefined && start + toolsPerPage < listed.length;
  return {
    tools: page.map(describe),
    ...(hasMore ? { nextCursor: Buffer.from(last.name).toString('base64url') } : {}),
    ...(era === 'stateless' ? cached : {}),
  };
}

function describe({
  name,
  title,
  description,
  inputSchema,
  outputSchema,
  annotations,
}: ToolDescription): Result {
  return { name, title, description, inputSchema, outputSchema, annotations };
}

/** A cursor is the name of the last tool of a page. */
function readCursor(cursor: unknown, listed: readonly Tool[]): number {
  if (cursor === undefined || cursor === null) return 0;
  const name = typeof cursor === 'string' ? Buffer.from(cursor, 'base64url').toString() : '';
  const index = listed.findIndex((tool) => tool.name === name);
  if (index < 0) throw invalidParams('cursor must be the nextCursor of the page before.');
  return index + 1;
}

async function runTool(
  { tools, guard, calls }: McpOptions,
  { message, principal, request, signal }: MethodCall,
): Promise<Result> {
  const { name, arguments: given = {} } = message.params;
  const tool = typeof name === 'string' ? tools.get(name) : undefined;
  if (tool === undefined) throw invalidParams('Unknown tool.');
  if (!isObject(given)) throw invalidParams('arguments must be an object.');
  await requireScope(guard, request, principal, tool.scope);
  const logFailure = (err: unknown) => request.log.error({ err, tool: tool.name }, 'tool failed');
  const slot = calls.take(holderOf(principal));
  // It waits for other servers most of the time, and `calls` limits it.
  if (tool.annotations.openWorldHint) request.place?.leave();
  try {
    return await callTool(tool, { arguments: given, principal, signal }, logFailure);
  } finally {
    calls.release(slot);
  }
}
