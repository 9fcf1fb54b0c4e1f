/** The messages of a thread for outgoing requests (outgoing_thread.ts), and their reader inside the thread. */

import type { MessagePort, Transferable } from 'node:worker_threads';
import { fromPlainError, type PlainError, toPlainError } from './plain_error.ts';
import type { ResolveHost } from './resolve.ts';

export type ToThread =
  | { id: number; request: unknown }
  | { abort: number }
  | { resolution: number; result: Resolution };

export type Resolution = { addresses: string[] } | { error: PlainError };

export type FromThread =
  | 'ready'
  | { id: number; value: unknown }
  | { id: number; error: PlainError }
  | { resolve: number; host: string };

/** Answers one request with plain data. */
export type Answer = (
  request: unknown,
  signal: AbortSignal,
) => Promise<{ value: unknown; transfer?: Transferable[] }>;

/** Answers requests until the thread ends. An aborted request is answered at once, which shows that the thread is not stuck. */
export function serveCalls(port: MessagePort, answer: Answer): void {
  const running = new Map<number, AbortController>();
  const post = (message: FromThread, transfer: Transferable[] = []) => port.postMessage(message, transfer);
  const run = async (id: number, request: unknown) => {
    const controller = new AbortController();
    running.set(id, controller);
    try {
      const { value, transfer } = await answer(request, controller.signal);
      if (running.delete(id)) post({ id, value }, transfer);
    } catch (error) {
      if (running.delete(id)) post({ id, error: toPlainError(error) });
    }
  };
  port.on('message', (message: ToThread) => {
    if ('id' in message) void run(message.id, message.request);
    if (!('abort' in message)) return;
    const controller = running.get(message.abort);
    if (!running.delete(message.abort)) return;
    controller?.abort();
    post({ id: message.abort, error: toPlainError(controller?.signal.reason) });
  });
  post('ready');
}

/** Resolves names in the thread that asks for the requests: functions cannot be passed to a thread. */
export function resolveOutside(port: MessagePort): ResolveHost {
  const waiting = new Map<number, (result: Resolution) => void>();
  let last = 0;
  port.on('message', (message: ToThread) => {
    if (!('resolution' in message)) return;
    waiting.get(message.resolution)?.(message.result);
    waiting.delete(message.resolution);
  });
  return async (host) => {
    last += 1;
    const { promise, resolve } = Promise.withResolvers<Resolution>();
    waiting.set(last, resolve);
    port.postMessage({ resolve: last, host } satisfies FromThread);
    const result = await promise;
    if ('error' in result) throw fromPlainError(result.error);
    return result.addresses;
  };
}
