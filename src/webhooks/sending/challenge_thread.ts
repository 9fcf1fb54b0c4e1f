/**
 * The thread that sends the challenges of handshakes, and requests for the tokens that they need. Users choose the hosts, whose TLS
 * handshakes must not delay the server's thread.
 */

import type { MessagePort } from 'node:worker_threads';
import type { ClientCertificate, ConnectorOptions } from '../../egress/connector.ts';
import { EgressError } from '../../egress/error.ts';
import type { GuardedFetch } from '../../egress/fetch.ts';
import {
  answerFetches,
  connectorOptionsOf,
  type FetchThreadData,
  fetchThreadData,
  fetchThrough,
} from '../../egress/fetch_thread.ts';
import type { Answer } from '../../egress/outgoing_calls.ts';
import { OutgoingThread } from '../../egress/outgoing_thread.ts';
import type { OutgoingRequest } from './connection.ts';
import type { ExchangeResult } from './exchange.ts';
import { Sender } from './sender.ts';
import { tokenConnectionsMax } from './token_turns.ts';

/** Milliseconds for one exchange, or one request for a token, which has a shorter limit of its own. */
export const challengeMs = 10_000;

/** What a thread gets at its start. */
export interface ChallengeThreadData extends FetchThreadData {
  clientCertificate: ClientCertificate | null;
}

export type ChallengeRequest = Omit<OutgoingRequest, 'traced'>;
export type ChallengeResult = Pick<ExchangeResult, 'status' | 'error' | 'body' | 'truncated'>;

export class ChallengeThread {
  readonly #thread: OutgoingThread;
  /** For token URLs. */
  readonly fetch: GuardedFetch;

  constructor({ clientCertificate, ...options }: ConnectorOptions) {
    // The npm package contains JavaScript.
    const file = import.meta.url.endsWith('.ts') ? './challenge_worker.ts' : './challenge_worker.js';
    const data: ChallengeThreadData = {
      // The certificate is for the subscriber, not for its authorization server.
      ...fetchThreadData(options, { connectionsMax: tokenConnectionsMax }),
      clientCertificate: clientCertificate ?? null,
    };
    this.#thread = new OutgoingThread({
      entry: new URL(file, import.meta.url),
      name: 'challenges',
      data,
      timeoutMs: challengeMs,
      resolveHost: options.resolveHost,
    });
    this.fetch = fetchThrough(this.#thread);
  }

  /** @returns null if no response arrived in time */
  async send(request: ChallengeRequest): Promise<ChallengeResult | null> {
    try {
      const result = (await this.#thread.call({ exchange: request })) as ChallengeResult;
      return { ...result, body: result.body && bufferOf(result.body) };
    } catch (error) {
      if ((error as Error).name === 'TimeoutError') return null;
      // The thread is full, died or was closed.
      if (error instanceof EgressError)
        return { status: null, error: error.code, body: null, truncated: false };
      throw error;
    }
  }

  close(): Promise<void> {
    return this.#thread.close();
  }
}

/** Called inside the thread. */
export function answerChallenges(port: MessagePort, data: ChallengeThreadData): Answer {
  const answerFetch = answerFetches(port, data);
  const identity = data.clientCertificate === null ? {} : { clientCertificate: data.clientCertificate };
  const sender = new Sender({ ...connectorOptionsOf(port, data), ...identity });
  return async (request, signal) => {
    const { exchange } = request as { exchange?: ChallengeRequest };
    if (exchange === undefined) return answerFetch(request, signal);
    const { promise, resolve } = Promise.withResolvers<ChallengeResult>();
    sender.send({ ...exchange, body: bufferOf(exchange.body), traced: null }, resolve, undefined);
    const { status, error, body, truncated } = await promise;
    return { value: { status, error, body, truncated } satisfies ChallengeResult };
  };
}

/** Buffers arrive from another thread as plain arrays. */
function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}
