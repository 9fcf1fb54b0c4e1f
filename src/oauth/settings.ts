/**
 * What the operator may change of the authorization server: the section `oauth` of `nuncio.config.ts`.
 */

import {
  accessTokenSeconds,
  accessTokenSecondsMin,
  isAccessTokenLife,
} from '../clients/access_token_life.ts';

/** Never `none`, never HS256: whoever verifies a token must not be able to make one. */
export const accessTokenAlgorithms = ['ES256', 'RS256'] as const;
export type AccessTokenAlgorithm = (typeof accessTokenAlgorithms)[number];

export interface OAuthSettings {
  /** Form of access tokens: signed JWTs, or opaque ones that are looked up. A client may have its own. */
  readonly accessTokenFormat: 'jwt' | 'opaque';
  /**
   * Signs JWT access tokens. RFC 9068 section 2.1 demands RS256 of every resource server; ES256 is faster. Tokens of
   * both are accepted whatever is set, so that a change refuses no token that still lives.
   */
  readonly accessTokenAlgorithm: AccessTokenAlgorithm;
  /** Whether DPoP proofs must carry a nonce of ours (RFC 9449 section 8). */
  readonly dpopNonce: boolean;
  /** Whether every client must push its authorization requests (RFC 9126 section 5). */
  readonly requirePushedRequests: boolean;
  /**
   * APIs elsewhere, by their public URLs, that tokens may be meant for instead of our own (RFC 8707): exactly what
   * clients send as `resource`. With more than the URL to say of one: an object.
   */
  readonly resources: readonly (string | ResourceSettings)[];
  /**
   * Who may register an app (RFC 7591 section 3): anybody, who has an initial access token (`nuncio client invite`),
   * or nobody. An app that registered itself still has to be allowed by each user.
   */
  readonly registration: 'open' | 'token' | 'off';
  /** Whether an app may be known by the URL of its metadata document instead of being registered. */
  readonly clientMetadataDocuments: boolean;
  /**
   * Client certificates (RFC 8705): asked for by the server's own TLS (`direct`), or handed on by the reverse proxies
   * of `NUNCIO_TRUST_PROXY`; null where none are.
   */
  readonly mtls: MtlsSettings | 'direct' | null;
  /** Outdated: whether a confidential client may be registered to do without PKCE. */
  readonly withoutPkce: boolean;
  /** Deprecated: OpenID Connect's `id_token token`. */
  readonly implicit: boolean;
  /** Deprecated: `grant_type=password`, for confidential clients alone. */
  readonly password: boolean;
}

/** An API elsewhere, and what its tokens are like. */
export interface ResourceSettings {
  readonly url: string;
  /** What users are told it is called, 1 to 100 characters; by default its URL. */
  readonly name?: string;
  /** By default that of the deployment; a client's own wins. */
  readonly accessTokenFormat?: 'jwt' | 'opaque';
  /** By default that of the deployment. */
  readonly accessTokenAlgorithm?: AccessTokenAlgorithm;
  /** Life of its access tokens, 60 to 900; the shorter one where a client has its own. */
  readonly accessTokenSeconds?: number;
}

/** Headers by which the proxies hand a certificate on, in lower case. */
export interface MtlsSettings {
  /** The certificate, as in RFC 9440 or as PEM with percent encoding, like `client-cert`. */
  readonly certificateHeader: string;
  /**
   * Says `SUCCESS` where an authority that the proxy trusts issued the certificate. Null: no certificate counts as
   * issued by one, and only those that apps registered themselves are of use.
   */
  readonly verifiedHeader: string | null;
}

export const defaultOAuthSettings: OAuthSettings = Object.freeze({
  accessTokenFormat: 'jwt',
  accessTokenAlgorithm: 'ES256',
  dpopNonce: false,
  requirePushedRequests: false,
  resources: Object.freeze([]),
  registration: 'open',
  clientMetadataDocuments: true,
  mtls: null,
  withoutPkce: false,
  implicit: false,
  password: false,
});

const choices: Readonly<Record<string, readonly unknown[]>> = {
  accessTokenFormat: ['jwt', 'opaque'],
  accessTokenAlgorithm: accessTokenAlgorithms,
  dpopNonce: [true, false],
  requirePushedRequests: [true, false],
  registration: ['open', 'token', 'off'],
  clientMetadataDocuments: [true, false],
  withoutPkce: [true, false],
  implicit: [true, false],
  password: [true, false],
};

/** Resources at most. */
const resourcesMax = 1_000;

/** @param report told of each problem with its place */
export function readOAuthSettings(
  declared: Partial<OAuthSettings> | undefined,
  report: (place: string, reason: string) => void,
): OAuthSettings {
  const given = declared ?? {};
  const { resources = [], mtls = null, ...switches } = given;
  if (!Array.isArray(resources) || resources.length > resourcesMax || !resources.every(isResource)) {
    report('oauth.resources', resourcesMayBe);
  }
  if (mtls !== null && mtls !== 'direct' && !isMtlsSettings(mtls)) report('oauth.mtls', mtlsMayBe);
  for (const [name, value] of Object.entries(switches)) {
    const allowed = choices[name];
    if (allowed === undefined) report(`oauth.${name}`, 'there is no such setting');
    else if (!allowed.includes(value)) {
      report(`oauth.${name}`, `it may be ${allowed.map((choice) => JSON.stringify(choice)).join(' or ')}`);
    }
  }
  return Object.freeze({ ...defaultOAuthSettings, ...given });
}

const resourcesMayBe = `it may be an array of up to ${resourcesMax} http(s) URLs without fragment, or of objects with such a \`url\`, a \`name\` (1 to 100 characters), an \`accessTokenFormat\` ("jwt" or "opaque"), an \`accessTokenAlgorithm\` ("ES256" or "RS256") and \`accessTokenSeconds\` (${accessTokenSecondsMin} to ${accessTokenSeconds})`;

function isResource(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return isResourceUrl(value);
  const {
    url,
    name = 'An API',
    accessTokenFormat = 'jwt',
    accessTokenAlgorithm = 'ES256',
    accessTokenSeconds: seconds,
    ...rest
  } = value as ResourceSettings;
  const isLife = seconds === undefined || isAccessTokenLife(seconds);
  const isFormat = accessTokenFormat === 'jwt' || accessTokenFormat === 'opaque';
  const isAlgorithm = accessTokenAlgorithms.includes(accessTokenAlgorithm);
  const isName = typeof name === 'string' && /^(?=.*\S)\P{C}{1,100}$/u.test(name);
  return isResourceUrl(url) && isName && isFormat && isAlgorithm && isLife && Object.keys(rest).length === 0;
}

/** RFC 8707 section 2: an absolute URI without a fragment. */
function isResourceUrl(value: unknown): boolean {
  if (typeof value !== 'string' || value.includes('#')) return false;
  return /^https?:$/.test(URL.parse(value)?.protocol ?? '');
}

const mtlsMayBe =
  'it may be null, "direct" or { certificateHeader, verifiedHeader }: names of headers in lower case, the latter also null';

function isMtlsSettings(value: unknown): value is MtlsSettings {
  const { certificateHeader, verifiedHeader, ...rest } = value as Record<string, unknown>;
  const isName = (name: unknown) => typeof name === 'string' && /^[a-z0-9-]{1,64}$/.test(name);
  const isVerified = verifiedHeader === null || isName(verifiedHeader);
  return isName(certificateHeader) && isVerified && Object.keys(rest).length === 0;
}
