/**
 * `subscriptions/listen`: a stream of notifications. This server has none to send: its lists change only with its configuration, at a
 * restart. So it acknowledges an empty filter, and keeps the stream open because clients would otherwise ask again at once.
 *
 *   opened → acknowledged → heartbeats → result (token, time, shutdown) | connection closed
 */

import type { FastifyReply } from 'fastify';
import type { Principal } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import { beginStream } from '../http/stream_response.ts';
import { holderOf, type StreamSlots } from '../http/stream_slots.ts';
import { invalidParams, isObject, type RequestId, type RpcRequest } from './json_rpc.ts';
import { subscriptionIdKey } from './protocol.ts';

const heartbeatMs = 15_000;
const streamMsMax = 15 * 60_000;
const checkMs = 1_000;

export interface ListenOptions {
  id: RequestId;
  principal: Principal;
  slots: StreamSlots;
  /** Checks the token in memory. @throws Problem */
  checkToken: () => Promise<unknown>;
  /** Adds what every result has. */
  complete: (result: Record<string, unknown>) => Record<string, unknown>;
}

/** @throws RpcError */
export function checkListenParams({ params }: RpcRequest): void {
  if (!isObject(params.notifications)) throw invalidParams('notifications must be an object.');
}

/**
 * The message is not passed, because the stream would keep it.
 * @throws Problem before the stream begins
 */
export async function listen(reply: FastifyReply, options: ListenOptions): Promise<void> {
  const { id, principal, slots, checkToken, complete } = options;
  const stream = slots.take(holderOf(principal));
  try {
    beginStream(reply, stream);
    const { raw } = reply;
    const meta = { [subscriptionIdKey]: id };
    const acknowledged = {
      jsonrpc: '2.0',
      method: 'notifications/subscriptions/acknowledged',
      params: { notifications: {}, _meta: meta },
    };
    raw.write(messageText(acknowledged));
    await keepOpen(stream, () => raw.write(': heartbeat\n\n'), checkToken);
    if (!raw.destroyed) raw.end(messageText({ jsonrpc: '2.0', id, result: complete({ _meta: meta }) }));
  } finally {
    slots.release(stream);
  }
}

/** Ends with the stream, its time, or the token. */
async function keepOpen(
  stream: AbortController,
  beat: () => void,
  checkToken: () => Promise<unknown>,
): Promise<void> {
  const { signal } = stream;
  const beats = setInterval(beat, heartbeatMs);
  const checks = setInterval(() => {
    checkToken().catch((error: unknown) => {
      // The database may be unreachable for a moment.
      if (error instanceof Problem && error.status < 500) stream.abort();
    });
  }, checkMs);
  const end = setTimeout(() => stream.abort(), streamMsMax);
  await new Promise<void>((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
  clearInterval(beats);
  clearInterval(checks);
  clearTimeout(end);
}

/** JSON has no line breaks here. */
function messageText(message: object): string {
  return `data: ${JSON.stringify(message)}\n\n`;
}
