/** Raw requests to the endpoint for agents, in the form of each version of the protocol. */

import type { ReachableServer } from '../servers/server.ts';
import { mintAccessToken, type TestAccount, type TestClient } from './oauth.ts';

export const statelessVersion = '2026-07-28';

/** The members of `_meta` that every stateless request has. */
export const statelessMeta = {
  'io.modelcontextprotocol/protocolVersion': statelessVersion,
  'io.modelcontextprotocol/clientCapabilities': {},
  'io.modelcontextprotocol/clientInfo': { name: 'a test', version: '1.0.0' },
};

/** An access token for the endpoint, as the token endpoint issues it for `resource=<base URL>/mcp`. */
export async function mcpToken(
  server: ReachableServer,
  options: { account?: TestAccount; client: TestClient; scopes: readonly string[]; grantId?: string },
): Promise<{ accessToken: string; grantId: string | null }> {
  return mintAccessToken(server, { ...options, claims: { aud: `${server.baseUrl}/mcp` } });
}

export interface McpAnswer {
  status: number;
  headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: tests read what the server sent
  body: any;
}

/** Posts a body as it is. */
export async function postMcp(
  { baseUrl }: Pick<ReachableServer, 'baseUrl'>,
  token: string | null,
  body: string | object,
  headers: Record<string, string> = {},
): Promise<McpAnswer> {
  const response = await fetch(`${baseUrl}/mcp`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...headers,
    },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.text();
  return {
    status: response.status,
    headers: response.headers,
    body: text === '' ? undefined : JSON.parse(text),
  };
}

/** The headers that repeat parts of a stateless request. */
export function statelessHeaders(
  method: string,
  params: Record<string, unknown> = {},
): Record<string, string> {
  return {
    'mcp-protocol-version': statelessVersion,
    'mcp-method': method,
    ...(method === 'tools/call' ? { 'mcp-name': String(params.name) } : {}),
  };
}

/** A request of the version 2026-07-28. */
export function callMcp(
  server: Pick<ReachableServer, 'baseUrl'>,
  token: string,
  method: string,
  params: Record<string, unknown> = {},
): Promise<McpAnswer> {
  const message = { jsonrpc: '2.0', id: 1, method, params: { _meta: statelessMeta, ...params } };
  return postMcp(server, token, message, statelessHeaders(method, params));
}

/** A request of a client that began with `initialize`. */
export function callOlder(
  server: Pick<ReachableServer, 'baseUrl'>,
  token: string,
  method: string,
  params: Record<string, unknown> = {},
  version = '2025-11-25',
): Promise<McpAnswer> {
  const message = { jsonrpc: '2.0', id: 1, method, params };
  return postMcp(server, token, message, { 'mcp-protocol-version': version });
}

/** Calls a tool. @returns the result */
export async function callTool(
  server: Pick<ReachableServer, 'baseUrl'>,
  token: string,
  name: string,
  given: Record<string, unknown> = {},
  // biome-ignore lint/suspicious/noExplicitAny: tests read what the server sent
): Promise<any> {
  const { status, body } = await callMcp(server, token, 'tools/call', { name, arguments: given });
  if (status !== 200 || body.result === undefined) throw new Error(`${status} ${JSON.stringify(body)}`);
  return body.result;
}
