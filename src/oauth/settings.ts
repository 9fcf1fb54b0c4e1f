/**
 * The section `oauth` of `nuncio.config.ts`: settings of the authorization server.
 */

import {
  accessTokenSeconds,
  accessTokenSecondsMin,
  isAccessTokenLifetime,
} from '../clients/access_token_lifetime.ts';
import { accessTokenAlgorithms } from '../shared/access_token.ts';
import { reportUnknown } from '../shared/nearest.ts';

export type AccessTokenAlgorithm = (typeof accessTokenAlgorithms)[number];

export interface OAuthSettings {
  /**
   * `'jwt'` or `'opaque'`; a client may have its own. Opaque tokens begin with `nat_` and end with a
   * checksum.
   * @default `'jwt'`
   */
  readonly accessTokenFormat: 'jwt' | 'opaque';
  /**
   * Signs JWT access tokens: `'ES256'`, or `'RS256'` for an API whose library knows no other (RFC 9068
   * section 2.1). This server and `nuncio/protect` accept both at any time: after a change, tokens of both
   * live side by side for up to 15 minutes and none is refused.
   * @default `'ES256'`
   */
  readonly accessTokenAlgorithm: AccessTokenAlgorithm;
  /**
   * Whether DPoP proofs must carry a server nonce.
   * @default `false`
   */
  readonly dpopNonce: boolean;
  /**
   * Whether every client must push its authorization requests (RFC 9126).
   * @default `false`
   */
  readonly requirePushedRequests: boolean;
  /**
   * Public URLs of other APIs that tokens can be requested for (RFC 8707), or objects `{ url, name?,
   * accessTokenFormat?, accessTokenAlgorithm?, accessTokenSeconds? }`; see docs/protect.md. Tokens for these
   * APIs contain the claim `external_id`, your application's own id of the user, so declare only APIs of your
   * own. Apps can read it in a JWT. Users read `name` (1 to 100 characters) on the consent page, or the URL
   * where there is none. Lifetimes are 60 to 900 seconds; if both the client (`access_token_seconds` in its
   * metadata) and the API have one, the shorter applies.
   * @default `[]`
   */
  readonly resources: readonly (string | ResourceSettings)[];
  /**
   * Who may register an app (RFC 7591): anyone (`'open'`), holders of a token of `nuncio client invite` (`'token'`),
   * or nobody (`'off'`). Each user still has to consent to a registered app.
   * @default `'open'`
   */
  readonly registration: 'open' | 'token' | 'off';
  /**
   * Whether the URL of a metadata document can be a client id.
   * @default `true`
   */
  readonly clientMetadataDocuments: boolean;
  /**
   * Client certificates (RFC 8705): `'direct'`, or the headers in which a trusted reverse proxy forwards
   * them: see docs/platform.md#client-certificates.
   * @default `null`
   */
  readonly mtls: MtlsSettings | 'direct' | null;
  /**
   * Deprecated: whether a confidential client may be registered without PKCE. The client needs a setting, too.
   * @default `false`
   */
  readonly withoutPkce: boolean;
  /**
   * Deprecated: the response type `id_token token` of OpenID Connect. The client needs a setting, too.
   * @default `false`
   */
  readonly implicit: boolean;
  /**
   * Deprecated: `grant_type=password`, for confidential clients only. The client needs a setting, too. A client's backend is one network for
   * the limit of wrong passwords: after a hundred in 15 minutes, whoever typed them, all of its users are refused. So the client must limit them itself.
   * @default `false`
   */
  readonly password: boolean;
}

/** A resource server elsewhere, and the access tokens that it gets. */
export interface ResourceSettings {
  readonly url: string;
  /** Name shown to users, 1 to 100 characters. Default: the URL. */
  readonly name?: string;
  /** Default: the deployment's format. A client's own setting takes precedence. */
  readonly accessTokenFormat?: 'jwt' | 'opaque';
  /** Default: the deployment's algorithm. */
  readonly accessTokenAlgorithm?: AccessTokenAlgorithm;
  /** Lifetime of access tokens in seconds, 60 to 900. If the client has a setting of its own, the shorter one applies. */
  readonly accessTokenSeconds?: number;
}

/** Names of the headers, in lower case, in which reverse proxies forward a client certificate. */
export interface MtlsSettings {
  /** Contains the certificate: RFC 9440, or PEM with percent encoding. Example: `client-cert`. */
  readonly certificateHeader: string;
  /**
   * Is `SUCCESS` if a CA that the proxy trusts issued the certificate. Null: no certificate counts as issued by a CA, so
   * that only `self_signed_tls_client_auth` works.
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

/** Maximum number of resources. */
const resourcesMax = 1_000;

/**
 * Reads and validates the section.
 * @param report called with the place and the reason of each problem
 */
export function readOAuthSettings(
  declared: Partial<OAuthSettings> | undefined,
  report: (place: string, reason: string) => void,
): OAuthSettings {
  const given = declared ?? {};
  const { resources = [], mtls = null, ...switches } = given;
  if (!Array.isArray(resources) || resources.length > resourcesMax || !resources.every(isResource)) {
    report('oauth.resources', resourcesRule);
  }
  if (mtls !== null && mtls !== 'direct' && !isMtlsSettings(mtls)) report('oauth.mtls', mtlsRule);
  reportUnknown(given, defaultOAuthSettings, 'oauth', report);
  for (const [name, value] of Object.entries(switches)) {
    const allowed = Object.hasOwn(choices, name) ? choices[name] : undefined;
    if (allowed !== undefined && !allowed.includes(value)) {
      report(`oauth.${name}`, `must be ${allowed.map((choice) => JSON.stringify(choice)).join(' or ')}`);
    }
  }
  return Object.freeze({ ...defaultOAuthSettings, ...given });
}

const resourcesRule = `must be an array of up to ${resourcesMax} http(s) URLs without fragment, or of objects with such a \`url\`, a \`name\` (1 to 100 characters), an \`accessTokenFormat\` ("jwt" or "opaque"), an \`accessTokenAlgorithm\` ("ES256" or "RS256") and \`accessTokenSeconds\` (${accessTokenSecondsMin} to ${accessTokenSeconds})`;

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
  const isLifetime = seconds === undefined || isAccessTokenLifetime(seconds);
  const isFormat = accessTokenFormat === 'jwt' || accessTokenFormat === 'opaque';
  const isAlgorithm = accessTokenAlgorithms.includes(accessTokenAlgorithm);
  const isName = typeof name === 'string' && /^(?=.*\S)\P{C}{1,100}$/u.test(name);
  return (
    isResourceUrl(url) && isName && isFormat && isAlgorithm && isLifetime && Object.keys(rest).length === 0
  );
}

/** RFC 8707 section 2: an absolute URI without a fragment. */
function isResourceUrl(value: unknown): boolean {
  if (typeof value !== 'string' || value.includes('#')) return false;
  return /^https?:$/.test(URL.parse(value)?.protocol ?? '');
}

const mtlsRule =
  'must be null, "direct" or { certificateHeader, verifiedHeader }: header names in lower case; verifiedHeader may be null';

function isMtlsSettings(value: unknown): value is MtlsSettings {
  const { certificateHeader, verifiedHeader, ...rest } = value as Record<string, unknown>;
  const isName = (name: unknown) => typeof name === 'string' && /^[a-z0-9-]{1,64}$/.test(name);
  const isVerified = verifiedHeader === null || isName(verifiedHeader);
  return isName(certificateHeader) && isVerified && Object.keys(rest).length === 0;
}
