/**
 * Metadata that an operator may register a client with, besides the options of the command. The names are those of RFC
 * 7591, RFC 8705, RFC 9101, RFC 9126, RFC 9449 and OpenID Connect.
 */

import { accessTokenSeconds, accessTokenSecondsMin, isAccessTokenLifetime } from './access_token_lifetime.ts';
import { keySetError } from './key_set.ts';

type Kind = 'lifetime' | 'subject' | 'string' | 'boolean' | 'array' | 'object' | 'integer';

const members: Readonly<Record<string, Kind>> = {
  access_token_format: 'string',
  access_token_seconds: 'lifetime',
  backchannel_logout_session_required: 'boolean',
  backchannel_logout_uri: 'string',
  client_uri: 'string',
  contacts: 'array',
  default_max_age: 'integer',
  dpop_bound_access_tokens: 'boolean',
  id_token_signed_response_alg: 'string',
  jwks: 'object',
  jwks_uri: 'string',
  logo_uri: 'string',
  policy_uri: 'string',
  post_logout_redirect_uris: 'array',
  request_object_signing_alg: 'string',
  require_auth_time: 'boolean',
  require_pushed_authorization_requests: 'boolean',
  require_signed_request_object: 'boolean',
  sector_identifier_uri: 'string',
  subject_type: 'subject',
  tls_client_auth_san_dns: 'string',
  tls_client_auth_san_email: 'string',
  tls_client_auth_san_ip: 'string',
  tls_client_auth_san_uri: 'string',
  tls_client_auth_subject_dn: 'string',
  tls_client_certificate_bound_access_tokens: 'boolean',
  token_endpoint_auth_signing_alg: 'string',
  tos_uri: 'string',
  userinfo_signed_response_alg: 'string',
};

const checks: Readonly<Record<Kind, (value: unknown) => boolean>> = {
  lifetime: isAccessTokenLifetime,
  subject: (value) => value === 'public' || value === 'pairwise',
  string: (value) => typeof value === 'string' && value !== '',
  boolean: (value) => typeof value === 'boolean',
  array: (value) => Array.isArray(value) && value.every((entry) => typeof entry === 'string'),
  object: (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  integer: (value) => Number.isSafeInteger(value) && Number(value) >= 0,
};

const descriptions: Readonly<Record<Kind, string>> = {
  lifetime: `an integer from ${accessTokenSecondsMin} to ${accessTokenSeconds} (seconds)`,
  subject: '"public" or "pairwise"',
  string: 'a string',
  boolean: 'a boolean',
  array: 'an array of strings',
  object: 'an object',
  integer: 'a non-negative integer',
};

/** @returns the first error in the format of the metadata or in its keys; undefined if there is none */
export function metadataError(metadata: Readonly<Record<string, unknown>>): string | undefined {
  for (const [name, value] of Object.entries(metadata)) {
    const kind = Object.hasOwn(members, name) ? members[name] : undefined;
    if (kind === undefined) return `${name} is not one of ${Object.keys(members).join(', ')}`;
    if (!checks[kind](value)) return `${name} must be ${descriptions[kind]}`;
  }
  return metadata.jwks === undefined ? undefined : keySetError(metadata.jwks);
}

/** Members that identify the credentials of a client, by authentication method. Exactly one is required. */
const credentials: Readonly<Record<string, readonly string[]>> = {
  private_key_jwt: ['jwks', 'jwks_uri'],
  self_signed_tls_client_auth: ['jwks', 'jwks_uri'],
  tls_client_auth: Object.keys(members).filter((name) => name.startsWith('tls_client_auth_')),
};

/** @returns the error if the client cannot authenticate (RFC 7591 section 2, RFC 8705 section 2) */
export function credentialsError(
  metadata: Readonly<Record<string, unknown>>,
  authMethod: string,
): string | undefined {
  const wanted = credentials[authMethod] ?? [];
  const given = wanted.filter((name) => Object.hasOwn(metadata, name));
  if (wanted.length === 0 || given.length === 1) return undefined;
  const names = wanted.join(', ');
  return given.length === 0
    ? `${authMethod} requires one of ${names}`
    : `${authMethod} requires exactly one of ${names}`;
}

/** @returns the error if pairwise subjects have no unique sector (OpenID Connect Core section 8.1) */
export function sectorError(
  metadata: Readonly<Record<string, unknown>>,
  redirectUris: readonly string[],
): string | undefined {
  if (metadata.subject_type !== 'pairwise' || metadata.sector_identifier_uri !== undefined) return undefined;
  const hosts = new Set(redirectUris.map((uri) => URL.parse(uri)?.host));
  if (hosts.size === 1) return undefined;
  return 'subject_type pairwise requires a sector_identifier_uri, or redirect URIs with the same host';
}

/** Client authentication methods that FAPI 2.0 section 5.3.2.1 allows. */
const fapi2AuthMethods = new Set(['private_key_jwt', 'tls_client_auth', 'self_signed_tls_client_auth']);
/** Algorithms that FAPI 2.0 section 5.4.1 allows. Ed25519 is the newer name of EdDSA with that curve. */
const fapi2Algorithms = ['PS256', 'ES256', 'EdDSA', 'Ed25519'];
/** Grant types that FAPI 2.0 does not allow. */
const notFapi2GrantTypes = ['implicit', 'password'];

/**
 * Completes the metadata for the FAPI 2.0 Security Profile (sections 5.3.2.1 and 5.4.1): pushed authorization requests,
 * sender-constrained tokens, authentication by key or certificate, and no RS256.
 * @returns the completed metadata, or the reason why it does not conform
 */
export function fapi2Metadata(
  metadata: Readonly<Record<string, unknown>>,
  authMethod: string,
  grantTypes: readonly string[],
): { metadata: Record<string, unknown> } | { error: string } {
  const isBoundByCertificate = metadata.tls_client_certificate_bound_access_tokens === true;
  const signingAlg = metadata.token_endpoint_auth_signing_alg ?? 'ES256';
  // oidc-provider requires keys of a client with a `request_object_signing_alg`.
  const hasKeys = metadata.jwks !== undefined || metadata.jwks_uri !== undefined;
  const completed = {
    ...(isBoundByCertificate ? {} : { dpop_bound_access_tokens: true }),
    ...(authMethod === 'private_key_jwt' ? { token_endpoint_auth_signing_alg: signingAlg } : {}),
    id_token_signed_response_alg: 'ES256',
    ...(hasKeys ? { request_object_signing_alg: signingAlg } : {}),
    require_pushed_authorization_requests: true,
    ...metadata,
  };
  const error = fapi2Error(completed, authMethod, grantTypes);
  return error === undefined ? { metadata: completed } : { error };
}

function fapi2Error(
  metadata: Readonly<Record<string, unknown>>,
  authMethod: string,
  grantTypes: readonly string[],
): string | undefined {
  if (!fapi2AuthMethods.has(authMethod)) {
    return `FAPI 2.0 requires one of the authentication methods ${[...fapi2AuthMethods].join(', ')}`;
  }
  const grantType = notFapi2GrantTypes.find((name) => grantTypes.includes(name));
  if (grantType !== undefined) return `FAPI 2.0 does not allow the grant type ${grantType}`;
  if (metadata.require_pushed_authorization_requests !== true) {
    return 'FAPI 2.0 requires require_pushed_authorization_requests';
  }
  if (!isSenderConstrained(metadata)) {
    return 'FAPI 2.0 requires dpop_bound_access_tokens or tls_client_certificate_bound_access_tokens';
  }
  for (const name of ['token_endpoint_auth_signing_alg', 'request_object_signing_alg'] as const) {
    const value = metadata[name];
    if (value !== undefined && !fapi2Algorithms.includes(String(value))) {
      return `FAPI 2.0 does not allow ${name} ${JSON.stringify(value)}: it must be one of ${fapi2Algorithms.join(', ')}`;
    }
  }
  // Of the allowed algorithms, this server signs with ES256 only.
  for (const name of ['id_token_signed_response_alg', 'userinfo_signed_response_alg'] as const) {
    if (metadata[name] !== undefined && metadata[name] !== 'ES256') return `FAPI 2.0 requires ${name} ES256`;
  }
  return undefined;
}

function isSenderConstrained(metadata: Readonly<Record<string, unknown>>): boolean {
  return (
    metadata.dpop_bound_access_tokens === true || metadata.tls_client_certificate_bound_access_tokens === true
  );
}

/**
 * Whether a client is a FAPI 2.0 client. Derived from its metadata, because there is no flag. Only clients that the operator
 * registered count: an app cannot impose the profile on itself.
 */
export function isFapi2Client({ origin, authMethod, metadata }: Fapi2Traits): boolean {
  return (
    origin === 'operator' &&
    fapi2AuthMethods.has(authMethod) &&
    metadata.require_pushed_authorization_requests === true &&
    isSenderConstrained(metadata)
  );
}

interface Fapi2Traits {
  readonly origin: string;
  readonly authMethod: string;
  readonly metadata: Readonly<Record<string, unknown>>;
}
