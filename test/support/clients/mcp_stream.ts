/** Opens a stream of the endpoint for agents and reads its messages. */

import { statelessHeaders, statelessMeta } from './mcp_client.ts';

// biome-ignore lint/suspicious/noExplicitAny: tests read what the server sent
type Message = any;

export interface McpStream {
  response: Response;
  /** Reads the next message; undefined at the end. */
  next: () => Promise<Message>;
  /** Reads until a message of a method. */
  until: (method: string) => Promise<Message>;
  close: () => void;
}

/** @param isOlder as a client that began with `initialize` */
export async function openMcpStream(
  { baseUrl }: { baseUrl: string },
  token: string,
  method: string,
  params: Record<string, unknown>,
  { id = 'stream-1', isOlder = false }: { id?: unknown; isOlder?: boolean } = {},
): Promise<McpStream> {
  const aborted = new AbortController();
  const response = await fetch(`${baseUrl}/mcp`, {
    method: 'POST',
    signal: aborted.signal,
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...(isOlder ? { 'mcp-protocol-version': '2025-11-25' } : statelessHeaders(method)),
    },
    body: JSON.stringify({
      ...{ jsonrpc: '2.0', id, method },
      params: isOlder ? params : { _meta: statelessMeta, ...params },
    }),
  });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const next = async (): Promise<Message> => {
    for (;;) {
      const end = text.indexOf('\n\n');
      if (end >= 0) {
        const block = text.slice(0, end);
        text = text.slice(end + 2);
        if (block.startsWith('data: ')) return JSON.parse(block.slice(6));
        continue;
      }
      const part = await reader?.read();
      if (part === undefined || part.done) return text === '' ? undefined : JSON.parse(text);
      text += part.value;
    }
  };
  const until = async (wanted: string): Promise<Message> => {
    for (let message = await next(); message !== undefined; message = await next()) {
      if (message.method === wanted) return message;
    }
    return undefined;
  };
  return { response, next, until, close: () => aborted.abort() };
}
