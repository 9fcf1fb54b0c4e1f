/**
 * Fetches in a thread of its own (outgoing_thread.ts), for hosts that strangers choose: a slow handshake then delays only other fetches
 * in that thread. Only plain data crosses.
 */

import type { MessagePort } from 'node:worker_threads';
import type { ConnectorOptions } from './connector.ts';
import { createGuardedFetch, type FetchLimits, fetchTimeoutMs, type GuardedFetch } from './fetch.ts';
import { type Answer, resolveOutside } from './outgoing_calls.ts';
import { OutgoingThread } from './outgoing_thread.ts';

/** What a thread gets at its start. */
export interface FetchThreadData {
  options: Omit<ConnectorOptions, 'resolveHost'>;
  limits: FetchLimits;
  /** Whether the other thread resolves names. */
  asksForAddresses: boolean;
}

interface PlainRequest {
  url: string;
  method: string;
  headers: [string, string][];
  body: string | null;
}

interface PlainResponse {
  status: number;
  headers: [string, string][];
  body: Uint8Array<ArrayBuffer> | null;
}

/** The same as `createGuardedFetch`, in another thread. */
export function createThreadedFetch(
  options: ConnectorOptions,
  limits: FetchLimits = {},
): { fetch: GuardedFetch; close: () => Promise<void> } {
  // The npm package contains JavaScript.
  const file = import.meta.url.endsWith('.ts') ? './fetch_worker.ts' : './fetch_worker.js';
  const thread = new OutgoingThread({
    entry: new URL(file, import.meta.url),
    name: 'fetches',
    data: fetchThreadData(options, limits),
    timeoutMs: limits.timeoutMs ?? fetchTimeoutMs,
    resolveHost: options.resolveHost,
  });
  return { fetch: fetchThrough(thread), close: () => thread.close() };
}

export function fetchThreadData(
  { resolveHost, ...options }: ConnectorOptions,
  limits: FetchLimits,
): FetchThreadData {
  return { options, limits, asksForAddresses: resolveHost !== undefined };
}

/** Fetches in a thread that answers with `answerFetches`. */
export function fetchThrough(thread: OutgoingThread): GuardedFetch {
  return async (url, { method = 'GET', headers, body, signal } = {}) => {
    const request: PlainRequest = {
      url: String(url),
      method,
      headers: [...new Headers(headers)],
      body: body === undefined || body === null ? null : String(body),
    };
    const response = (await thread.call(request, signal)) as PlainResponse;
    return new Response(response.body, response);
  };
}

/** Called inside the thread. */
export function answerFetches(port: MessagePort, data: FetchThreadData): Answer {
  const { fetch } = createGuardedFetch(connectorOptionsOf(port, data), data.limits);
  return async (request, signal) => {
    const { url, ...init } = request as PlainRequest;
    const response = await fetch(url, { ...init, signal });
    const body = response.body === null ? null : new Uint8Array(await response.arrayBuffer());
    const value: PlainResponse = { status: response.status, headers: [...response.headers], body };
    return { value, transfer: body === null ? [] : [body.buffer] };
  };
}

/** Called inside the thread. */
export function connectorOptionsOf(port: MessagePort, data: FetchThreadData): ConnectorOptions {
  return { ...data.options, ...(data.asksForAddresses ? { resolveHost: resolveOutside(port) } : {}) };
}
