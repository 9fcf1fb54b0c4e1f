/**
 * The access token as a request brings it (RFC 6750 section 2, RFC 9449 section 7.1): in the Authorization header,
 * once, and nowhere else.
 */

/** Headers of `node:http`, or of the Fetch API. */
export type RequestHeaders =
  | Readonly<Record<string, string | readonly string[] | undefined>>
  | { get(name: string): string | null };

/** The part of a request that decides. */
export interface ProtectedRequest {
  method: string;
  /** The request's target as it came: a path with its query, or the whole URL. */
  url: string;
  headers: RequestHeaders;
}

export type Scheme = 'Bearer' | 'DPoP';

export type Credentials =
  | { kind: 'token'; scheme: Scheme; token: string }
  /** No token was brought, or by a scheme that is not ours. */
  | { kind: 'none' }
  | { kind: 'malformed'; scheme: Scheme; detail: string };

export function readCredentials(request: ProtectedRequest): Credentials {
  const values = headerValues(request.headers, 'authorization');
  const scheme: Scheme = /^dpop\b/i.test(values[0] ?? '') ? 'DPoP' : 'Bearer';
  if (hasTokenInQuery(request.url)) {
    // RFC 6750 section 2: one method only; and OAuth 2.1 section 5 has no tokens in URLs at all.
    return {
      kind: 'malformed',
      scheme,
      detail: 'The access token belongs in the Authorization header alone.',
    };
  }
  if (values.length > 1) {
    return { kind: 'malformed', scheme, detail: 'There may be one Authorization header only.' };
  }
  // RFC 9110 section 11.1: the scheme's name is in any case.
  const [, name, token] = /^(bearer|dpop)(?:$| +(.*)$)/is.exec(values[0] ?? '') ?? [];
  if (name === undefined) return { kind: 'none' };
  if (token === undefined || !/^[A-Za-z0-9._~+/-]+=*$/.test(token)) {
    return { kind: 'malformed', scheme, detail: `The Authorization header must be ${scheme} and a token.` };
  }
  return { kind: 'token', scheme, token };
}

/** All values of a header; Node joins those of most names into one. */
export function headerValues(headers: RequestHeaders, name: string): readonly string[] {
  const value = isFetchHeaders(headers) ? headers.get(name) : headers[name];
  if (value === null || value === undefined) return [];
  return typeof value === 'string' ? [value] : value;
}

function isFetchHeaders(headers: RequestHeaders): headers is { get(name: string): string | null } {
  return typeof headers.get === 'function';
}

function hasTokenInQuery(url: string): boolean {
  const at = url.indexOf('?');
  return at >= 0 && new URLSearchParams(url.slice(at)).has('access_token');
}
