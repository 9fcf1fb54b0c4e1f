/**
 * Authenticates requests to subscribers (subscriptions/subscriber_auth.ts). Access tokens are kept in memory until they expire, each for one
 * subscription: no subscription can use a token of another one. At most one request for a token of a subscription is in progress, and
 * accounts take turns at the authorization servers (token_turns.ts).
 */

import { LRUCache } from 'lru-cache';
import { type GuardedFetch, TooLargeError } from '../../egress/fetch.ts';
import { ProtocolError } from '../../egress/http1/interface.ts';
import { upTo } from '../../shared/entries.ts';
import { NoTurnError } from '../../shared/limited_work.ts';
import type { ClientCredentials, SubscriberAuth } from '../subscriptions/subscriber_auth.ts';
import { TokenTurns } from './token_turns.ts';

/** What a request carries to authenticate. */
export interface Authorization {
  /** Header lines, each with its CRLF. */
  lines: string;
  /** Whether the connection presents the client certificate. */
  isMutual: boolean;
  /** The access token; null for other types. */
  token: string | null;
}

/** The request cannot authenticate. The message is for the subscriber's developer. */
export class AuthError extends Error {
  override readonly name = 'AuthError';
}

/** Maximum number of tokens in memory, and maximum characters of one. */
const heldMax = 5_000;
const tokenCharactersMax = 4_096;
/** Maximum bytes of a response of a token URL. */
export const tokenBytesMax = 16_384;
/**
 * Seconds that a token is used if the response does not say how long it is valid; the least, so that a short validity does not double
 * the requests; the most; and how long before its end it is replaced.
 */
const validSecondsDefault = 300;
const validSecondsMin = 60;
const validSecondsMax = 86_400;
const marginSeconds = 30;
/** Milliseconds after a failed or repeated request for a token in which no other is sent. */
const quietMs = 10_000;

interface Held {
  /** Null after a failure, or once the subscriber refused it. */
  authorization: Authorization | null;
  /** Milliseconds on the monotonic clock. */
  until: number;
  requested: Promise<Authorization> | null;
  /** When the last request for a token began. */
  requestedAt: number;
  /** Why the last request failed, and when; null if it did not. */
  failure: AuthError | null;
  failedAt: number;
}

const none: Authorization = { lines: '', isMutual: false, token: null };
const certificate: Authorization = { lines: '', isMutual: true, token: null };

export class Authorizer {
  readonly #fetch: GuardedFetch;
  readonly #hasCertificate: boolean;
  readonly #turns: TokenTurns;
  readonly #held = new LRUCache<string, Held>(upTo(heldMax));

  /** @param hasCertificate whether connections can present a client certificate */
  constructor(fetch: GuardedFetch, hasCertificate: boolean, turns: TokenTurns = new TokenTurns()) {
    this.#fetch = fetch;
    this.#turns = turns;
    this.#hasCertificate = hasCertificate;
  }

  /**
   * @param subscription its id
   * @param account the tenant whose subscription it is
   * @returns at once if no token is needed or one is held
   * @throws AuthError, possibly by the promise, or NoTurnError if nothing was asked for want of a turn
   */
  authorize(
    subscription: string,
    account: string,
    auth: SubscriberAuth | null,
  ): Authorization | Promise<Authorization> {
    if (auth === null) return none;
    switch (auth.type) {
      case 'basic':
        return fixed(
          'authorization',
          `Basic ${Buffer.from(`${auth.username}:${auth.password}`).toString('base64')}`,
        );
      case 'header':
        return fixed(auth.name, auth.value);
      case 'mtls':
        if (!this.#hasCertificate) throw new AuthError('the deployment has no client certificate');
        return certificate;
      case 'oauth2':
        return this.#tokenOf(subscription, account, auth);
    }
  }

  /**
   * Requests the token that `authorize` would wait for.
   * @returns undefined if `authorize` responds at once. Otherwise it does so for a while from the time that the promise resolves; the
   *   promise never rejects
   */
  prepare(subscription: string, account: string, auth: SubscriberAuth | null): Promise<void> | undefined {
    if (auth?.type !== 'oauth2' || this.#hasAnswer(keyOf(subscription, auth))) return undefined;
    const done = () => {};
    return Promise.resolve(this.#tokenOf(subscription, account, auth)).then(done, done);
  }

  /** Whether a token is held, or no other may be requested yet. */
  #hasAnswer(key: string): boolean {
    const held = this.#held.get(key);
    if (held === undefined) return false;
    const now = performance.now();
    return held.authorization === null ? isQuiet(held, now) : now < held.until;
  }

  /**
   * The subscriber responded with 401 to a token.
   * @returns whether another token can be requested now
   */
  refuse(subscription: string, auth: SubscriberAuth | null, token: string): boolean {
    if (auth?.type !== 'oauth2') return false;
    const held = this.#held.get(keyOf(subscription, auth));
    // Another attempt has replaced it, or is about to.
    if (held === undefined || held.authorization?.token !== token) return true;
    if (performance.now() - held.requestedAt < quietMs) return false;
    held.authorization = null;
    return true;
  }

  #tokenOf(
    subscription: string,
    account: string,
    auth: ClientCredentials,
  ): Authorization | Promise<Authorization> {
    const key = keyOf(subscription, auth);
    const now = performance.now();
    let held = this.#held.get(key);
    if (held === undefined) {
      const requestedAt = Number.NEGATIVE_INFINITY;
      held = {
        authorization: null,
        until: 0,
        requested: null,
        requestedAt,
        failure: null,
        failedAt: requestedAt,
      };
      this.#held.set(key, held);
    }
    if (held.authorization !== null && now < held.until) return held.authorization;
    if (held.requested !== null) return held.requested;
    if (held.failure !== null && isQuiet(held, now)) throw held.failure;
    held.requestedAt = now;
    held.requested = this.#request(account, auth, held);
    return held.requested;
  }

  async #request(account: string, auth: ClientCredentials, held: Held): Promise<Authorization> {
    try {
      const issued = await this.#turns.run(auth.token_url, account, () =>
        requestToken(this.#fetch, auth, account),
      );
      if (issued === undefined) throw new AuthError('too many requests to the token URL are waiting');
      const { token, seconds } = issued;
      held.failure = null;
      held.authorization = { lines: `authorization: Bearer ${token}\r\n`, isMutual: false, token };
      held.until = performance.now() + seconds * 1_000;
      return held.authorization;
    } catch (error) {
      held.authorization = null;
      // Nothing was asked.
      if (error instanceof NoTurnError) throw error;
      held.failure = error instanceof AuthError ? error : new AuthError(describe(error));
      held.failedAt = performance.now();
      throw held.failure;
    } finally {
      held.requested = null;
    }
  }
}

function describe(error: unknown): string {
  if (error instanceof TooLargeError)
    return `the response of the token URL is larger than ${tokenBytesMax} bytes, or has too many chunks`;
  if (error instanceof ProtocolError) return 'the response of the token URL is not HTTP';
  return 'the token URL could not be reached';
}

function isQuiet({ requested, failure, failedAt }: Held, now: number): boolean {
  return requested === null && failure !== null && now - failedAt < quietMs;
}

function fixed(name: string, value: string): Authorization {
  return { lines: `${name}: ${value}\r\n`, isMutual: false, token: null };
}

function keyOf(
  subscription: string,
  { token_url: url, client_id: id, client_secret: secret, scope }: ClientCredentials,
) {
  return JSON.stringify([subscription, url, id, secret, scope]);
}

/** The client credentials grant (RFC 6749 section 4.4), with the password of the client as in section 2.3.1. @throws AuthError */
async function requestToken(
  fetch: GuardedFetch,
  { token_url: url, client_id: id, client_secret: secret, scope }: ClientCredentials,
  tenant: string,
): Promise<{ token: string; seconds: number }> {
  const encoded = (text: string) => new URLSearchParams([['', text]]).toString().slice(1);
  const password = Buffer.from(`${encoded(id)}:${encoded(secret)}`).toString('base64');
  const body = new URLSearchParams({
    grant_type: 'client_credentials',
    ...(scope === undefined ? {} : { scope }),
  });
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      authorization: `Basic ${password}`,
      'content-type': 'application/x-www-form-urlencoded',
      accept: 'application/json',
    },
    body: body.toString(),
    tenant,
  });
  const answer = (await response.json().catch(() => null)) as Record<string, unknown> | null;
  if (response.status !== 200) {
    const code =
      typeof answer?.error === 'string' && /^[\x21-\x7e]{1,64}$/.test(answer.error)
        ? `, ${answer.error}`
        : '';
    throw new AuthError(`the token URL responded with ${response.status}${code}`);
  }
  const { access_token: token, token_type: type, expires_in: expires } = answer ?? {};
  // RFC 6750 section 2.1: b64token.
  if (typeof token !== 'string' || token.length > tokenCharactersMax || !/^[\w.~+/-]+=*$/.test(token))
    throw new AuthError('the response of the token URL has no usable access token');
  if (typeof type !== 'string' || type.toLowerCase() !== 'bearer')
    throw new AuthError('the response of the token URL has no token of the type Bearer');
  const given = Number(expires);
  const seconds =
    expires !== undefined && Number.isFinite(given) ? given - marginSeconds : validSecondsDefault;
  return { token, seconds: Math.min(Math.max(seconds, validSecondsMin), validSecondsMax) };
}
