/**
 * `POST /mcp`: the Streamable HTTP transport of the Model Context Protocol. Each request is complete in itself: it is
 * authorized before its body is read, and nothing is remembered for the next.
 *
 *   origin → access token → body → message → version → method → result
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { ConnectionTraces } from '../connections/traces.ts';
import { showRateLimit } from '../grants/limited_guard.ts';
import type { Principal } from '../grants/principal.ts';
import { addBodyParser } from '../http/body_limit.ts';
import { Problem } from '../http/problem.ts';
import type { StreamSlots } from '../http/stream_slots.ts';
import { mcpPath } from '../oauth/protected_resource.ts';
import {
  errorResponse,
  type RequestId,
  RpcError,
  type RpcRequest,
  readMessage,
  responseText,
} from './json_rpc.ts';
import { checkListenParams, listen } from './listen.ts';
import { completeResult, type McpOptions, runMethod } from './methods.ts';
import { originCheck, sendPreflight } from './origin.ts';
import { readEra } from './protocol.ts';
import { reportRefusedMessage, reportRefusedOrigin } from './trace.ts';

export interface EndpointOptions extends McpOptions {
  baseUrl: string;
  /** Origins besides the server's own. */
  allowedOrigins: readonly string[];
  /** Of open streams. */
  slots: StreamSlots;
  traces: ConnectionTraces;
}

export function registerMcp(app: FastifyInstance, options: EndpointOptions): void {
  const { baseUrl, allowedOrigins, traces } = options;
  const checkOrigin = originCheck(baseUrl, allowedOrigins, (request, explanation) =>
    reportRefusedOrigin(traces, request, explanation),
  );
  void app.register(async (scope) => {
    showRateLimit(scope);
    scope.removeAllContentTypeParsers();
    // Parsed in the handler, whose errors have the form of the protocol.
    addBodyParser(scope, 'application/json', (bytes) => bytes);
    scope.addHook('onRequest', async (request, reply) => {
      reply.header('cache-control', 'no-store');
      checkOrigin(request, reply);
      if (request.method === 'POST') await options.guard(request);
    });
    scope.post(mcpPath, async (request, reply) => serve(options, request, reply));
    scope.options(mcpPath, (_request, reply) => sendPreflight(reply));
    scope.route({
      method: ['GET', 'HEAD', 'PUT', 'PATCH', 'DELETE'],
      url: mcpPath,
      // Before the body is read.
      onRequest: async () => {
        throw new Problem(405, 'This resource supports POST.', { headers: { allow: 'POST' } });
      },
      handler: () => {},
    });
  });
}

async function serve(
  options: EndpointOptions,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  let id: RequestId | undefined;
  try {
    let message: RpcRequest | undefined = readMessage(
      (request.body as Buffer | undefined) ?? Buffer.alloc(0),
    );
    id = message.id;
    // A stream would keep its bytes, and what shares their memory.
    request.body = undefined;
    const era = readEra(message, request.headers);
    if (id === undefined) return reply.code(202).send();
    // Check again, because the grant may have been withdrawn while the body arrived.
    const principal = await options.guard(request);
    if (era === 'stateless' && message.method === 'subscriptions/listen') {
      checkListenParams(message);
      // This function waits for the end of the stream, which would keep the message.
      message = undefined;
      return await openStream(options, request, reply, id, principal);
    }
    if (message.method === 'events/stream') {
      const call = { message, principal, request, guard: options.guard };
      // Results of older versions have nothing that each result has.
      const complete = (result: Record<string, unknown>) =>
        era === 'stateless' ? completeResult(options, result) : result;
      await options.events.stream(call, reply, complete);
      return reply;
    }
    const result = await runMethod(options, { message, era, principal, request, signal: signalOf(reply) });
    return send(reply, 200, responseText({ jsonrpc: '2.0', id, result }));
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    if (error.status === 400) explain(options, request, error);
    return send(reply, error.status, JSON.stringify(errorResponse(error, id ?? error.id)));
  }
}

/** Clients rarely show why a message was refused. The guard has answered before, so it costs nothing here. */
function explain({ guard, traces }: EndpointOptions, request: FastifyRequest, error: RpcError): void {
  guard(request).then(
    (principal) => reportRefusedMessage(traces, request, principal, error),
    () => {},
  );
}

/** Most methods need no signal, so it is made when one does. It aborts when the client disconnects before it has the response. */
function signalOf({ raw }: FastifyReply): () => AbortSignal {
  let closed: AbortController | undefined;
  return () => {
    if (closed !== undefined) return closed.signal;
    const controller = new AbortController();
    closed = controller;
    raw.once('close', () => {
      if (!raw.writableFinished) controller.abort();
    });
    if (raw.destroyed) controller.abort();
    return controller.signal;
  };
}

async function openStream(
  options: EndpointOptions,
  request: FastifyRequest,
  reply: FastifyReply,
  id: RequestId,
  principal: Principal,
): Promise<FastifyReply> {
  await listen(reply, {
    id,
    principal,
    slots: options.slots,
    checkToken: () => options.guard(request),
    complete: (result) => completeResult(options, result),
  });
  return reply;
}

function send(reply: FastifyReply, status: number, text: string): FastifyReply {
  return reply.code(status).type('application/json').send(text);
}
