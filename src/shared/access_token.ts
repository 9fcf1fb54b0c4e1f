/** What the server's own API and `nuncio/protect` agree on about access tokens. */

/** Signature algorithms of JWTs. Asymmetric only: a party that verifies tokens must not be able to issue them. */
export const accessTokenAlgorithms = ['ES256', 'RS256'] as const;

/** Maximum length in characters. No token of a Nuncio server is longer. */
export const accessTokenLengthMax = 8_192;

/** RFC 6750 section 2: one method per request. OAuth 2.1 section 5 does not allow tokens in URLs. */
export function hasTokenInQuery(target: string): boolean {
  const at = target.indexOf('?');
  return at >= 0 && new URLSearchParams(target.slice(at)).has('access_token');
}
