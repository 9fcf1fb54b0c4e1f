/** A small MCP server over streamable HTTP, protected by `nuncio/protect`, with one tool that reads and one that writes. */

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AuthInfo } from '@modelcontextprotocol/sdk/server/auth/types.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { createProtector, type Principal, type ProtectorOptions } from '../../../src/protect/protect.ts';

/** The scope that every client needs to connect. Tools require further scopes. */
export const baseScopes = ['read:posts'];
const toolScopes: Readonly<Record<string, readonly string[]>> = { write: ['read:posts', 'write:posts'] };

interface Scope {
  after: (hook: () => Promise<void>) => unknown;
}

/** @param options the URL is the address of the server: a loopback port and a path */
export async function startMcpServer(scope: Scope, options: ProtectorOptions): Promise<void> {
  const { port, pathname } = new URL(options.url);
  const protect = createProtector(options);
  const connect = protect.http(baseScopes, async (request, response, principal) => {
    // The server is stateless: it has no sessions and never sends unsolicited messages.
    if (request.method !== 'POST') return response.writeHead(405, { allow: 'POST' }).end();
    const message = await readJson(request);
    const scopes = scopesOf(message);
    if (scopes.length === 0) return answer(request, response, principal, message);
    const call = protect.http(scopes, () => answer(request, response, principal, message));
    return call(request, response);
  });
  const server = createServer((request, response) => {
    if (protect.wellKnown(request, response)) return;
    if (request.url !== pathname) response.writeHead(404).end();
    else connect(request, response).catch((error) => response.destroy(error));
  });
  await new Promise<void>((resolve) => server.listen(Number(port), '127.0.0.1', resolve));
  scope.after(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
}

async function answer(
  request: IncomingMessage & { auth?: AuthInfo },
  response: ServerResponse,
  { accountId, clientId, scopes }: Principal,
  message: unknown,
): Promise<void> {
  const server = new McpServer({ name: 'notes', version: '1.0.0' });
  server.registerTool('read', { description: 'Says whose notes these are.' }, () => ({
    content: [{ type: 'text', text: JSON.stringify({ accountId, clientId, scopes: [...scopes].sort() }) }],
  }));
  server.registerTool('write', { description: 'Writes a note.' }, () => ({
    content: [{ type: 'text', text: 'written' }],
  }));
  const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true });
  response.once('close', () => server.close());
  await server.connect(transport as Transport);
  await transport.handleRequest(request, response, message);
}

function scopesOf(message: unknown): readonly string[] {
  const { method, params } = message as { method?: string; params?: { name?: string } };
  return (method === 'tools/call' && toolScopes[params?.name ?? '']) || [];
}

async function readJson(request: IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return JSON.parse(Buffer.concat(chunks).toString());
}
