/**
 * Publishes events (`POST /events`) from a server of your own, in batches with retries. Each event gets its id before the
 * first attempt, and events with the same id are published once, so that retries are safe.
 */

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseObject } from '../shared/response_text.ts';
import {
  type BoundedResponse,
  createFetchObject,
  type Fetch,
  fetchBounded,
  IssuerUnavailable,
} from './bounded_fetch.ts';
import { type ClientToken, createClientToken, TokenRefused } from './client_token.ts';
import { checkIssuer, createDiscovery } from './discovery.ts';

export interface NewEvent {
  /** A kind that the platform declares, for example `note.created`. */
  kind: string;
  /** The account of the event: its id, or your application's own user id. */
  account: string | { readonly external_id: string | number };
  /** Must match the schema of the kind. */
  body: unknown;
  /**
   * 1 to 255 visible ASCII characters that identify the event: publishing it again has no effect. Store it together with
   * the change that the event describes. Default: a new UUID.
   */
  id?: string | undefined;
}

export interface PublisherOptions {
  /** The base URL of the Nuncio server. */
  issuer: string;
  /** Your client at the server, with the grant type `client_credentials` and the scope `write:events`. */
  clientId: string;
  clientSecret: string;
  /** Maximum attempts per batch, 1 to 20. Default: 5, over about 8 seconds. */
  attempts?: number | undefined;
  /** Default: the global `fetch`. */
  fetch?: Fetch | undefined;
}

export interface Publisher {
  /**
   * Publishes events in the given order. Large numbers are sent in several batches, one after the other. Each batch is
   * accepted completely or not at all.
   * @returns the ids of the events, once all of them are durable
   * @throws PublishError if a batch was rejected or could not be delivered
   */
  publish(events: NewEvent | readonly NewEvent[], options?: PublishOptions): Promise<string[]>;
}

export interface PublishOptions {
  /** Aborts the request in flight and the pause before the next one. Events that were sent may have been published. */
  signal?: AbortSignal | undefined;
}

/** Not all events were published. */
export class PublishError extends Error {
  override readonly name = 'PublishError';
  /** Status of the last response; null if there was none. */
  readonly status: number | null;
  /** Problem details (RFC 9457) of the last response, if any. The pointers in `errors` refer to the batch. */
  readonly problem: Readonly<Record<string, unknown>> | null;
  /** The events that may not be published, with their ids. Publish exactly these again. */
  readonly events: readonly NewEvent[];
  /** Milliseconds from `Retry-After` of the last response; null without one. */
  readonly retryAfterMs: number | null;

  constructor(
    message: string,
    details: {
      status: number | null;
      problem: Record<string, unknown> | null;
      events: readonly NewEvent[];
      retryAfterMs?: number | null;
    },
    cause?: unknown,
  ) {
    super(message, { cause });
    this.retryAfterMs = details.retryAfterMs ?? null;
    this.status = details.status;
    this.problem = details.problem;
    this.events = details.events;
  }
}

/** Maximum events per batch (the server's limit), and maximum characters of its JSON (well below the server's 16 MiB). */
const batchEventsMax = 1_000;
const batchCharactersMax = 4_194_304;
const attemptsDefault = 5;
const attemptsMax = 20;
/** Milliseconds: timeout of one request, first pause (doubled with each retry), its maximum, and that of a pause that the server asks for. */
const timeoutMs = 15_000;
const pauseMs = 500;
const pauseMsMax = 30_000;
const retryAfterMsMax = 60_000;

/** @throws TypeError if an option is missing or invalid */
export function createPublisher(options: PublisherOptions): Publisher {
  const { issuer, clientId, clientSecret, attempts = attemptsDefault } = options;
  checkIssuer(issuer);
  if (!clientId || !clientSecret) throw new TypeError('clientId and clientSecret are missing');
  if (!Number.isInteger(attempts) || attempts < 1 || attempts > attemptsMax) {
    throw new TypeError(`attempts is ${attempts}: it must be an integer from 1 to ${attemptsMax}`);
  }
  const fetcher = options.fetch ?? fetch;
  const discover = createDiscovery(issuer, createFetchObject(fetcher));
  const token = createClientToken({ fetcher, discover, clientId, clientSecret, scope: 'write:events' });
  const target = { fetcher, url: `${issuer.replace(/\/$/, '')}/events`, token, attempts };

  return {
    async publish(events, { signal } = {}) {
      const given: readonly NewEvent[] = Array.isArray(events) ? events : [events as NewEvent];
      const named = given.map((event) => ({ ...event, id: event.id ?? randomUUID() }));
      let published = 0;
      for (const batch of toBatches(named)) {
        await publishBatch(batch, named.slice(published), target, signal);
        published += batch.length;
      }
      return named.map(({ id }) => id);
    },
  };
}

interface Target {
  fetcher: Fetch;
  url: string;
  token: ClientToken;
  attempts: number;
}

/** Serializes the events and divides them into batches. */
function toBatches(events: readonly NewEvent[]): string[][] {
  const batches: string[][] = [];
  let characters = Number.POSITIVE_INFINITY;
  for (const event of events) {
    const text = JSON.stringify(event);
    const last = batches.at(-1);
    if (
      last === undefined ||
      last.length >= batchEventsMax ||
      characters + text.length > batchCharactersMax
    ) {
      batches.push([text]);
      characters = text.length;
    } else {
      last.push(text);
      characters += text.length;
    }
  }
  return batches;
}

/** @param events the events of this batch and of the following ones, for the error */
async function publishBatch(
  batch: string[],
  events: readonly NewEvent[],
  target: Target,
  signal: AbortSignal | undefined,
): Promise<void> {
  const body = `[${batch.join(',')}]`;
  for (let attempt = 1; ; attempt += 1) {
    const outcome = await post(body, target, signal);
    if ('status' in outcome && outcome.status === 202) return;
    const isLast = attempt >= target.attempts || signal?.aborted === true;
    if (isLast || !isRetryable(outcome)) throw toPublishError(outcome, events);
    try {
      await sleep(pauseAfter(attempt, outcome), undefined, signal === undefined ? {} : { signal });
    } catch {
      throw toPublishError(outcome, events);
    }
  }
}

/** @returns the response, or the error if there was none */
async function post(
  body: string,
  { fetcher, url, token }: Target,
  signal: AbortSignal | undefined,
): Promise<BoundedResponse | Error> {
  try {
    const accessToken = await token.get();
    const headers = {
      authorization: `Bearer ${accessToken}`,
      'content-type': 'application/json',
      accept: 'application/json',
    };
    const response = await fetchBounded(fetcher, url, { method: 'POST', headers, body }, timeoutMs, signal);
    // The token was revoked, or its signing key removed. A new token may work.
    if (response.status === 401) token.drop(accessToken);
    return response;
  } catch (error) {
    if (error instanceof IssuerUnavailable || error instanceof TokenRefused) return error;
    throw error;
  }
}

function isRetryable(outcome: BoundedResponse | Error): boolean {
  if (outcome instanceof Error) return outcome instanceof IssuerUnavailable;
  return outcome.status === 401 || outcome.status === 429 || outcome.status >= 500;
}

/** Milliseconds until the next attempt: doubled each time, half of it random, and at least `Retry-After`, up to a maximum. */
function pauseAfter(attempt: number, outcome: BoundedResponse | Error): number {
  const doubled = pauseMs * 2 ** (attempt - 1);
  const pause = doubled / 2 + (Math.random() * doubled) / 2;
  const requested = outcome instanceof Error ? 0 : (retryAfterOf(outcome) ?? 0);
  return Math.max(Math.min(pauseMsMax, pause), Math.min(retryAfterMsMax, requested));
}

/** Milliseconds. RFC 9110 section 10.2.3: the header contains seconds or a date. */
function retryAfterOf({ headers }: BoundedResponse): number | null {
  const value = headers.get('retry-after')?.trim() ?? '';
  if (/^\d+$/.test(value)) return Number(value) * 1_000;
  const date = Date.parse(value);
  return Number.isNaN(date) ? null : Math.max(0, date - Date.now());
}

function toPublishError(outcome: BoundedResponse | Error, events: readonly NewEvent[]): PublishError {
  if (outcome instanceof Error) {
    return new PublishError(outcome.message, { status: null, problem: null, events }, outcome);
  }
  const problem = parseObject(outcome.text) ?? null;
  const detail = problem?.detail === undefined ? '' : `: ${problem.detail}`;
  const message = `publishing failed with status ${outcome.status}${detail}`;
  return new PublishError(message, {
    status: outcome.status,
    problem,
    events,
    retryAfterMs: retryAfterOf(outcome),
  });
}
