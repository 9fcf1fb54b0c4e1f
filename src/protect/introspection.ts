/**
 * Introspection (RFC 7662): the issuer's word on whether a token still lives. An answer is used for some seconds,
 * counted from when the question was put: a withdrawal is known here after that time at the latest.
 */

import { LRUCache } from 'lru-cache';
import { type FetchObject, IssuerUnavailable } from './bounded_fetch.ts';
import { clientAuthorization } from './client_authentication.ts';
import type { IssuerMetadata } from './discovery.ts';

/** Answers remembered at most. */
const rememberedMax = 10_000;
/** Questions on their way at once, at most: more are turned away, or one caller could occupy the issuer. */
const underwayMax = 100;

export interface IntrospectionOptions {
  discover: () => Promise<IssuerMetadata>;
  fetchObject: FetchObject;
  clientId: string;
  clientSecret: string;
  /** Seconds that an answer is used; 0 asks every time. */
  cacheSeconds: number;
}

/** What the issuer says of a living token; undefined of any other. */
export type Introspected = Readonly<Record<string, unknown>> | undefined;

export type Introspect = (token: string, digest: string) => Promise<Introspected>;

/** @throws IssuerUnavailable (the function) when the issuer does not answer */
export function createIntrospection(options: IntrospectionOptions): Introspect {
  const cacheMs = options.cacheSeconds * 1_000;
  const remembered = new LRUCache<string, { answer: Promise<Introspected>; askedAt: number }>({
    max: rememberedMax,
  });
  let underway = 0;

  return async function introspect(token, digest) {
    const known = remembered.get(digest);
    if (known !== undefined && performance.now() - known.askedAt < cacheMs) return known.answer;
    if (underway >= underwayMax) {
      throw new IssuerUnavailable(`${underwayMax} introspections are on their way already`);
    }
    underway += 1;
    const answer = ask(token, options).finally(() => {
      underway -= 1;
    });
    if (cacheMs > 0) {
      const entry = { answer, askedAt: performance.now() };
      remembered.set(digest, entry);
      // A failure is nobody's answer but theirs who waited for it.
      answer.catch(() => {
        if (remembered.get(digest) === entry) remembered.delete(digest);
      });
    }
    return answer;
  };
}

async function ask(token: string, options: IntrospectionOptions): Promise<Introspected> {
  const { introspectionEndpoint } = await options.discover();
  if (introspectionEndpoint === null) {
    throw new IssuerUnavailable('the issuer names no introspection_endpoint');
  }
  const answer = await options.fetchObject(introspectionEndpoint, {
    method: 'POST',
    headers: {
      accept: 'application/json',
      authorization: clientAuthorization(options.clientId, options.clientSecret),
    },
    body: new URLSearchParams({ token, token_type_hint: 'access_token' }),
  });
  if (typeof answer.active !== 'boolean') {
    throw new IssuerUnavailable('the introspection endpoint answered without "active"');
  }
  // RFC 7662 section 2.2 would also answer for a refresh token, which opens nothing: only an access token has a type.
  const isAccessToken = /^(bearer|dpop)$/i.test(String(answer.token_type));
  return answer.active && isAccessToken ? answer : undefined;
}
