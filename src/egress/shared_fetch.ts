/**
 * Fetches documents that anybody can have fetched, such as those of apps: whenever someone sends a request in an app's name.
 *
 * Tenants that want the same URL share one request. It must not wait for the turns of whoever happened to ask first, who may have used up its own, so
 * each of them waits for its turns, and the first to have them sends the request:
 *
 *   wanted by one → by more of them … → the turns of one have come: sent, once → response for all
 *
 * Requests for a URL are limited, because a stranger could otherwise use this server to flood another one.
 */

import { LRUCache } from 'lru-cache';
import { TokenBucket } from '../shared/token_bucket.ts';
import type { FetchRequest, GuardedFetch } from './fetch.ts';

/** Maximum burst of requests per URL, and refill per second. Beyond that the last response is repeated. */
const burstMax = 10;
const requestsPerSecond = 1;
/** Maximum number of remembered URLs, each with a response of up to 64 KiB. */
const urlsMax = 200;

/** Creates a response. Its body can be read only once. */
type Copy = () => Response;

interface LimitedUrl {
  requests: TokenBucket;
  response: Promise<Copy>;
}

export class SharedFetch {
  readonly #fetch: GuardedFetch;
  /** In progress. */
  readonly #shared = new Map<string, SharedRequest>();
  readonly #limited = new LRUCache<string, LimitedUrl>({ max: urlsMax });

  constructor(fetch: GuardedFetch) {
    this.#fetch = fetch;
  }

  /** @throws what `fetch` throws */
  async get(url: string, request: FetchRequest & { tenant: string }): Promise<Response> {
    const { tenant } = request;
    const known = this.#shared.get(url);
    if (known !== undefined) {
      known.add(tenant);
      return (await known.response)();
    }
    const recent = this.#limited.get(url);
    if (recent !== undefined && recent.requests.nextAt(performance.now()) !== null) {
      return (await recent.response)();
    }
    const shared = new SharedRequest(this.#fetch, url, request, () => this.#count(url, shared.response));
    this.#shared.set(url, shared);
    shared.add(tenant);
    try {
      return (await shared.response)();
    } finally {
      this.#shared.delete(url);
    }
  }

  /** The tenant waits for the response to a request that another one may have begun. */
  join(url: string, tenant: string): void {
    this.#shared.get(url)?.add(tenant);
  }

  #count(url: string, response: Promise<Copy>): void {
    const now = performance.now();
    const requests = this.#limited.get(url)?.requests ?? new TokenBucket(requestsPerSecond, burstMax, now);
    requests.nextAt(now);
    requests.take();
    this.#limited.set(url, { requests, response });
  }
}

/** One request of all who wait for its response. */
class SharedRequest {
  readonly #fetch: GuardedFetch;
  readonly #url: string;
  readonly #request: FetchRequest;
  readonly #onSent: () => void;
  readonly #response = Promise.withResolvers<Copy>();
  /** What ends the wait of each tenant. */
  readonly #tenants = new Map<string, AbortController>();
  #waiting = 0;
  /** Whose turns it was sent with. */
  #sender: string | undefined;

  constructor(fetch: GuardedFetch, url: string, request: FetchRequest, onSent: () => void) {
    this.#fetch = fetch;
    this.#url = url;
    this.#request = request;
    this.#onSent = onSent;
  }

  get response(): Promise<Copy> {
    return this.#response.promise;
  }

  add(tenant: string): void {
    if (this.#sender !== undefined || this.#tenants.has(tenant)) return;
    const ending = new AbortController();
    this.#tenants.set(tenant, ending);
    this.#waiting += 1;
    void this.#wait(tenant, ending.signal);
  }

  async #wait(tenant: string, signal: AbortSignal): Promise<void> {
    try {
      const onTurns = () => this.#send(tenant);
      const response = await this.#fetch(this.#url, { ...this.#request, tenant, signal, onTurns });
      this.#response.resolve(await copier(response));
    } catch (error) {
      this.#waiting -= 1;
      // While others wait, one of them may get its turns.
      if (this.#sender === tenant || this.#waiting === 0) this.#response.reject(error);
    }
  }

  #send(tenant: string): void {
    if (this.#sender !== undefined) return;
    this.#sender = tenant;
    this.#onSent();
    for (const [other, ending] of this.#tenants) if (other !== tenant) ending.abort();
  }
}

async function copier(response: Response): Promise<Copy> {
  const { status, headers } = response;
  const bytes = response.body === null ? null : await response.arrayBuffer();
  return () => new Response(bytes, { status, headers });
}
