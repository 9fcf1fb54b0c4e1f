/**
 * The access token of this server's own client (RFC 6749 section 4.4). Requested on first use and cached until shortly
 * before it expires.
 */

import { parseObject } from '../shared/response_text.ts';
import { type Fetch, fetchBounded, IssuerUnavailable } from './bounded_fetch.ts';
import { clientAuthorization } from './client_authentication.ts';
import type { IssuerMetadata } from './discovery.ts';

/** Seconds before expiry from which on a token is not used. */
const expiryMarginSeconds = 30;
/** Timeout of one request in milliseconds. */
const timeoutMs = 5_000;

export interface ClientTokenOptions {
  fetcher: Fetch;
  discover: () => Promise<IssuerMetadata>;
  clientId: string;
  clientSecret: string;
  scope: string;
}

export interface ClientToken {
  /**
   * @throws TokenRefused if the issuer rejects the request
   * @throws IssuerUnavailable if the issuer does not respond
   */
  get(): Promise<string>;
  /** Discards a token that was rejected, so that the next `get` requests another one. */
  drop(token: string): void;
}

/** The issuer rejects the client. Retrying does not help. */
export class TokenRefused extends Error {
  override readonly name = 'TokenRefused';
}

export function createClientToken(options: ClientTokenOptions): ClientToken {
  let cached: { token: string; until: number } | undefined;
  let pending: Promise<string> | undefined;

  async function request(): Promise<string> {
    try {
      cached = await requestToken(options);
      return cached.token;
    } finally {
      pending = undefined;
    }
  }

  return {
    async get() {
      if (cached !== undefined && performance.now() < cached.until) return cached.token;
      pending ??= request();
      return pending;
    },
    drop(token) {
      if (cached?.token === token) cached = undefined;
    },
  };
}

async function requestToken(options: ClientTokenOptions): Promise<{ token: string; until: number }> {
  const { tokenEndpoint } = await options.discover();
  const requestedAt = performance.now();
  const { status, text } = await fetchBounded(
    options.fetcher,
    tokenEndpoint,
    {
      method: 'POST',
      headers: {
        accept: 'application/json',
        authorization: clientAuthorization(options.clientId, options.clientSecret),
      },
      body: new URLSearchParams({ grant_type: 'client_credentials', scope: options.scope }),
    },
    timeoutMs,
  );
  const { access_token, expires_in, error, error_description } = parseObject(text) ?? {};
  if (status === 400 || status === 401) {
    throw new TokenRefused(`no access token for ${options.scope}: ${error} (${error_description ?? status})`);
  }
  if (status !== 200 || typeof access_token !== 'string') {
    throw new IssuerUnavailable(`${tokenEndpoint} responded with status ${status} and without a token`);
  }
  const seconds = typeof expires_in === 'number' ? expires_in : 0;
  return { token: access_token, until: requestedAt + (seconds - expiryMarginSeconds) * 1_000 };
}
