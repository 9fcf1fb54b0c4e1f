/**
 * Reads the access token of a request (RFC 6750 section 2, RFC 9449 section 7.1). It must be in one `Authorization` header
 * and nowhere else.
 */

import { hasTokenInQuery } from '../shared/access_token.ts';

/** Headers in the form of `node:http` or of the Fetch API. */
export type RequestHeaders =
  | Readonly<Record<string, string | readonly string[] | undefined>>
  | { get(name: string): string | null };

/** The parts of a request that the check needs. */
export interface ProtectedRequest {
  method: string;
  /** The request target as received: a path with its query, or an absolute URL. */
  url: string;
  headers: RequestHeaders;
}

export type Scheme = 'Bearer' | 'DPoP';

export type Credentials =
  | { kind: 'token'; scheme: Scheme; token: string }
  /** The request has no token, or an unknown scheme. */
  | { kind: 'none' }
  | { kind: 'malformed'; scheme: Scheme; detail: string };

export function readCredentials(request: ProtectedRequest): Credentials {
  const values = headerValues(request.headers, 'authorization');
  const scheme: Scheme = /^dpop\b/i.test(values[0] ?? '') ? 'DPoP' : 'Bearer';
  if (hasTokenInQuery(request.url)) {
    return {
      kind: 'malformed',
      scheme,
      detail: 'Send the access token in the Authorization header only.',
    };
  }
  if (values.length > 1) {
    return { kind: 'malformed', scheme, detail: 'The request must have only one Authorization header.' };
  }
  // RFC 9110 section 11.1: the scheme is case-insensitive.
  const [, name, token] = /^(bearer|dpop)(?:$| +(.*)$)/is.exec(values[0] ?? '') ?? [];
  if (name === undefined) return { kind: 'none' };
  if (token === undefined || !/^[A-Za-z0-9._~+/-]+=*$/.test(token)) {
    return {
      kind: 'malformed',
      scheme,
      detail: `The Authorization header must contain ${scheme} and a token.`,
    };
  }
  return { kind: 'token', scheme, token };
}

/** All values of a header. Node joins repeated headers of most names. */
export function headerValues(headers: RequestHeaders, name: string): readonly string[] {
  const value = isFetchHeaders(headers) ? headers.get(name) : headers[name];
  if (value === null || value === undefined) return [];
  return typeof value === 'string' ? [value] : value;
}

function isFetchHeaders(headers: RequestHeaders): headers is { get(name: string): string | null } {
  return typeof headers.get === 'function';
}
