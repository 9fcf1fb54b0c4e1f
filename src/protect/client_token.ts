/**
 * The access token by which this server speaks for itself (RFC 6749 section 4.4): asked for once and used until
 * shortly before it expires.
 */

import { type Fetch, fetchBounded, IssuerUnavailable, parseObject } from './bounded_fetch.ts';
import { clientAuthorization } from './client_authentication.ts';
import type { IssuerMetadata } from './discovery.ts';

/** Seconds before its end after which a token is not used any more. */
const reserveSeconds = 30;
/** Milliseconds for one answer. */
const answerMs = 5_000;

export interface ClientTokenOptions {
  fetcher: Fetch;
  discover: () => Promise<IssuerMetadata>;
  clientId: string;
  clientSecret: string;
  scope: string;
}

export interface ClientToken {
  /**
   * @throws TokenRefused when the issuer will not give one
   * @throws IssuerUnavailable when it does not answer
   */
  get(): Promise<string>;
  /** The token was refused: the next `get` asks for another. */
  drop(token: string): void;
}

/** The issuer does not give this client a token: it will not help to ask again. */
export class TokenRefused extends Error {
  override readonly name = 'TokenRefused';
}

export function createClientToken(options: ClientTokenOptions): ClientToken {
  let held: { token: string; until: number } | undefined;
  let asked: Promise<string> | undefined;

  async function ask(): Promise<string> {
    try {
      held = await requestToken(options);
      return held.token;
    } finally {
      asked = undefined;
    }
  }

  return {
    async get() {
      if (held !== undefined && performance.now() < held.until) return held.token;
      asked ??= ask();
      return asked;
    },
    drop(token) {
      if (held?.token === token) held = undefined;
    },
  };
}

async function requestToken(options: ClientTokenOptions): Promise<{ token: string; until: number }> {
  const { tokenEndpoint } = await options.discover();
  const askedAt = performance.now();
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
    answerMs,
  );
  const { access_token, expires_in, error, error_description } = parseObject(text) ?? {};
  if (status === 400 || status === 401) {
    throw new TokenRefused(`no token for ${options.scope}: ${error} (${error_description ?? status})`);
  }
  if (status !== 200 || typeof access_token !== 'string') {
    throw new IssuerUnavailable(`${tokenEndpoint} answered ${status} and no token`);
  }
  const seconds = typeof expires_in === 'number' ? expires_in : 0;
  return { token: access_token, until: askedAt + (seconds - reserveSeconds) * 1_000 };
}
