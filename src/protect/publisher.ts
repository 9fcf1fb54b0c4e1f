/**
 * Publishing events (`POST /events`) from a server of one's own: in batches, each tried again until it is known to be
 * durable. Every event has an id before it is sent for the first time, and the same id twice is one event, so that
 * trying again is safe whatever became of the time before.
 */

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type BoundedAnswer,
  createFetchObject,
  type Fetch,
  fetchBounded,
  IssuerUnavailable,
  parseObject,
} from './bounded_fetch.ts';
import { type ClientToken, createClientToken, TokenRefused } from './client_token.ts';
import { checkIssuer, createDiscovery } from './discovery.ts';

export interface NewEvent {
  /** A kind that the platform declares, like `note.created`. */
  kind: string;
  /** The account that the event belongs to: its id, or the user id that your application gave it. */
  account: string | { readonly external_id: string };
  /** As the kind's schema wants it. */
  body: unknown;
  /**
   * 1 to 255 visible ASCII characters of your own choice, by which the event is one however often it is published: best
   * kept with the change that it tells of. Default: a new UUID.
   */
  id?: string | undefined;
}

export interface PublisherOptions {
  /** The Nuncio server's base URL. */
  issuer: string;
  /** A client of yours there with the grant type `client_credentials` and the scope `write:events`. */
  clientId: string;
  clientSecret: string;
  /** Tries of one batch, 1 to 20. Default: 5, over about 8 seconds. */
  attempts?: number | undefined;
  /** Default: the global `fetch`. */
  fetch?: Fetch | undefined;
}

export interface Publisher {
  /**
   * Publishes events in the order given. What is more than a batch holds is sent in several, one after the other, and
   * each is taken whole or not at all.
   * @returns their ids, once all are durable
   * @throws PublishError when one batch was refused or could not be delivered
   */
  publish(events: NewEvent | readonly NewEvent[], options?: PublishOptions): Promise<string[]>;
}

export interface PublishOptions {
  /** Ends the request in flight and the pause before the next one. What was sent may have been published. */
  signal?: AbortSignal | undefined;
}

/** Not everything was published. */
export class PublishError extends Error {
  override readonly name = 'PublishError';
  /** The last answer's status; null where none came. */
  readonly status: number | null;
  /** The last answer's problem details (RFC 9457), where it had some: `errors` points into the batch. */
  readonly problem: Readonly<Record<string, unknown>> | null;
  /** What is not known to be published, with its ids: publish exactly these again. */
  readonly events: readonly NewEvent[];
  /** Milliseconds that the server asks to wait (`Retry-After`); null where it does not. */
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

/** Events of a batch at most: the server's limit; and characters of its JSON, well below the server's 16 MiB. */
const batchEventsMax = 1_000;
const batchCharactersMax = 4_194_304;
const attemptsDefault = 5;
const attemptsMax = 20;
/** Milliseconds for one answer; of the first pause, which doubles; and of the longest, also where the server asks. */
const answerMs = 15_000;
const pauseMs = 500;
const pauseMsMax = 30_000;

/** @throws TypeError when an option is missing or not what it may be */
export function createPublisher(options: PublisherOptions): Publisher {
  const { issuer, clientId, clientSecret, attempts = attemptsDefault } = options;
  checkIssuer(issuer);
  if (!clientId || !clientSecret) throw new TypeError('clientId and clientSecret are missing');
  if (!Number.isInteger(attempts) || attempts < 1 || attempts > attemptsMax) {
    throw new TypeError(`attempts is ${attempts}: it may be 1 to ${attemptsMax}`);
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

/** The JSON of each event, divided into batches. */
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

/** @param events this batch's, and those that come after it: what is lost if it fails */
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
    if (isLast || !isWorthAnotherTry(outcome)) throw toPublishError(outcome, events);
    try {
      await sleep(pauseAfter(attempt, outcome), undefined, signal === undefined ? {} : { signal });
    } catch {
      throw toPublishError(outcome, events);
    }
  }
}

/** @returns the answer, or the error that came instead of one */
async function post(
  body: string,
  { fetcher, url, token }: Target,
  signal: AbortSignal | undefined,
): Promise<BoundedAnswer | Error> {
  try {
    const accessToken = await token.get();
    const headers = {
      authorization: `Bearer ${accessToken}`,
      'content-type': 'application/json',
      accept: 'application/json',
    };
    const answer = await fetchBounded(fetcher, url, { method: 'POST', headers, body }, answerMs, signal);
    // Revoked, or signed by a key that is gone: another one may do.
    if (answer.status === 401) token.drop(accessToken);
    return answer;
  } catch (error) {
    if (error instanceof IssuerUnavailable || error instanceof TokenRefused) return error;
    throw error;
  }
}

function isWorthAnotherTry(outcome: BoundedAnswer | Error): boolean {
  if (outcome instanceof Error) return outcome instanceof IssuerUnavailable;
  return outcome.status === 401 || outcome.status === 429 || outcome.status >= 500;
}

/** Milliseconds: doubled each time, up to a half at random, and not before the server wants to be asked again. */
function pauseAfter(attempt: number, outcome: BoundedAnswer | Error): number {
  const doubled = pauseMs * 2 ** (attempt - 1);
  const pause = doubled / 2 + (Math.random() * doubled) / 2;
  const asked = outcome instanceof Error ? 0 : (retryAfterOf(outcome) ?? 0);
  return Math.min(pauseMsMax, Math.max(pause, asked));
}

/** Milliseconds. RFC 9110 section 10.2.3: seconds, or a date. */
function retryAfterOf({ headers }: BoundedAnswer): number | null {
  const value = headers.get('retry-after')?.trim() ?? '';
  if (/^\d+$/.test(value)) return Number(value) * 1_000;
  const date = Date.parse(value);
  return Number.isNaN(date) ? null : Math.max(0, date - Date.now());
}

function toPublishError(outcome: BoundedAnswer | Error, events: readonly NewEvent[]): PublishError {
  if (outcome instanceof Error) {
    return new PublishError(outcome.message, { status: null, problem: null, events }, outcome);
  }
  const problem = parseObject(outcome.text) ?? null;
  const detail = problem?.detail === undefined ? '' : `: ${problem.detail}`;
  const message = `publishing was answered with ${outcome.status}${detail}`;
  return new PublishError(message, {
    status: outcome.status,
    problem,
    events,
    retryAfterMs: retryAfterOf(outcome),
  });
}
