/**
 * Metadata that an operator may register a client with, beside what has options of its own: in the names of RFC
 * 7591, RFC 8705, RFC 9101, RFC 9126, RFC 9449 and OpenID Connect.
 */

import { accessTokenSeconds, accessTokenSecondsMin, isAccessTokenLife } from './access_token_life.ts';

type Kind = 'life' | 'subject' | 'text' | 'switch' | 'list' | 'object' | 'number';

const members: Readonly<Record<string, Kind>> = {
  access_token_format: 'text',
  access_token_seconds: 'life',
  backchannel_logout_session_required: 'switch',
  backchannel_logout_uri: 'text',
  client_uri: 'text',
  contacts: 'list',
  default_max_age: 'number',
  dpop_bound_access_tokens: 'switch',
  id_token_signed_response_alg: 'text',
  jwks: 'object',
  jwks_uri: 'text',
  logo_uri: 'text',
  policy_uri: 'text',
  post_logout_redirect_uris: 'list',
  request_object_signing_alg: 'text',
  require_auth_time: 'switch',
  require_pushed_authorization_requests: 'switch',
  require_signed_request_object: 'switch',
  sector_identifier_uri: 'text',
  subject_type: 'subject',
  tls_client_auth_san_dns: 'text',
  tls_client_auth_san_email: 'text',
  tls_client_auth_san_ip: 'text',
  tls_client_auth_san_uri: 'text',
  tls_client_auth_subject_dn: 'text',
  tls_client_certificate_bound_access_tokens: 'switch',
  token_endpoint_auth_signing_alg: 'text',
  tos_uri: 'text',
  userinfo_signed_response_alg: 'text',
};

const checks: Readonly<Record<Kind, (value: unknown) => boolean>> = {
  life: isAccessTokenLife,
  subject: (value) => value === 'public' || value === 'pairwise',
  text: (value) => typeof value === 'string' && value !== '',
  switch: (value) => typeof value === 'boolean',
  list: (value) => Array.isArray(value) && value.every((entry) => typeof entry === 'string'),
  object: (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  number: (value) => Number.isSafeInteger(value) && Number(value) >= 0,
};

const names: Readonly<Record<Kind, string>> = {
  life: `a whole number of seconds from ${accessTokenSecondsMin} to ${accessTokenSeconds}`,
  subject: '"public" or "pairwise"',
  text: 'a text',
  switch: 'a switch',
  list: 'a list',
  object: 'an object',
  number: 'a number',
};

/** @returns what is wrong with it, or undefined where it is good as far as its form goes */
export function metadataFault(metadata: Readonly<Record<string, unknown>>): string | undefined {
  for (const [name, value] of Object.entries(metadata)) {
    const kind = Object.hasOwn(members, name) ? members[name] : undefined;
    if (kind === undefined) return `${name} is not one of ${Object.keys(members).join(', ')}`;
    if (!checks[kind](value)) return `${name} must be ${names[kind]}`;
  }
  return undefined;
}

/** What a client of the method is recognised by: one of these members. */
const proofs: Readonly<Record<string, readonly string[]>> = {
  private_key_jwt: ['jwks', 'jwks_uri'],
  self_signed_tls_client_auth: ['jwks', 'jwks_uri'],
  tls_client_auth: Object.keys(members).filter((name) => name.startsWith('tls_client_auth_')),
};

/** @returns what is missing for the client to authenticate at all (RFC 7591 section 2, RFC 8705 section 2) */
export function proofFault(
  metadata: Readonly<Record<string, unknown>>,
  authMethod: string,
): string | undefined {
  const wanted = proofs[authMethod] ?? [];
  const given = wanted.filter((name) => Object.hasOwn(metadata, name));
  if (wanted.length === 0 || given.length === 1) return undefined;
  const names = wanted.join(', ');
  return given.length === 0
    ? `${authMethod} needs one of ${names}: nothing else could authenticate the app`
    : `${authMethod} takes one of ${names}, not several`;
}

/** @returns what keeps users from having one name there (OpenID Connect Core section 8.1) */
export function sectorFault(
  metadata: Readonly<Record<string, unknown>>,
  redirectUris: readonly string[],
): string | undefined {
  if (metadata.subject_type !== 'pairwise' || metadata.sector_identifier_uri !== undefined) return undefined;
  const hosts = new Set(redirectUris.map((uri) => URL.parse(uri)?.host));
  if (hosts.size === 1) return undefined;
  return 'subject_type pairwise needs a sector_identifier_uri, or redirect URIs of one host';
}

/** Methods of authentication that FAPI 2.0 (section 5.3.2.1) allows. */
const fapi2AuthMethods = new Set(['private_key_jwt', 'tls_client_auth', 'self_signed_tls_client_auth']);
/** Algorithms that FAPI 2.0 (section 5.4.1) allows in JWTs; Ed25519 is the newer name of EdDSA with that curve. */
const fapi2Algorithms = ['PS256', 'ES256', 'EdDSA', 'Ed25519'];
/** Grant types that issue tokens without an authorization code, from a front channel or for a password. */
const notFapi2GrantTypes = ['implicit', 'password'];

/**
 * What the FAPI 2.0 Security Profile demands of a client beyond what every client must do: pushed requests, tokens
 * bound to a key or a certificate, authentication by one, and no RS256 (section 5.3.2.1 and 5.4.1).
 * @returns the metadata, completed, or what does not fit the profile
 */
export function fapi2Metadata(
  metadata: Readonly<Record<string, unknown>>,
  authMethod: string,
  grantTypes: readonly string[],
): { metadata: Record<string, unknown> } | { fault: string } {
  const isBoundByCertificate = metadata.tls_client_certificate_bound_access_tokens === true;
  const signingAlg = metadata.token_endpoint_auth_signing_alg ?? 'ES256';
  // The engine demands keys of a client that has an algorithm for its request objects.
  const hasKeys = metadata.jwks !== undefined || metadata.jwks_uri !== undefined;
  const completed = {
    ...(isBoundByCertificate ? {} : { dpop_bound_access_tokens: true }),
    ...(authMethod === 'private_key_jwt' ? { token_endpoint_auth_signing_alg: signingAlg } : {}),
    id_token_signed_response_alg: 'ES256',
    ...(hasKeys ? { request_object_signing_alg: signingAlg } : {}),
    require_pushed_authorization_requests: true,
    ...metadata,
  };
  const fault = fapi2Fault(completed, authMethod, grantTypes);
  return fault === undefined ? { metadata: completed } : { fault };
}

function fapi2Fault(
  metadata: Readonly<Record<string, unknown>>,
  authMethod: string,
  grantTypes: readonly string[],
): string | undefined {
  if (!fapi2AuthMethods.has(authMethod)) {
    return `FAPI 2.0 needs one of the methods ${[...fapi2AuthMethods].join(', ')}`;
  }
  const grantType = notFapi2GrantTypes.find((name) => grantTypes.includes(name));
  if (grantType !== undefined) return `FAPI 2.0 does not allow the grant ${grantType}`;
  if (metadata.require_pushed_authorization_requests !== true) {
    return 'FAPI 2.0 needs require_pushed_authorization_requests';
  }
  if (!isSenderConstrained(metadata)) {
    return 'FAPI 2.0 needs dpop_bound_access_tokens or tls_client_certificate_bound_access_tokens';
  }
  for (const name of ['token_endpoint_auth_signing_alg', 'request_object_signing_alg'] as const) {
    const value = metadata[name];
    if (value !== undefined && !fapi2Algorithms.includes(String(value))) {
      return `FAPI 2.0 does not allow ${name} ${JSON.stringify(value)}: it may be ${fapi2Algorithms.join(', ')}`;
    }
  }
  // Of the algorithms that the profile allows, this server signs with one.
  for (const name of ['id_token_signed_response_alg', 'userinfo_signed_response_alg'] as const) {
    if (metadata[name] !== undefined && metadata[name] !== 'ES256') return `FAPI 2.0 needs ${name} ES256`;
  }
  return undefined;
}

function isSenderConstrained(metadata: Readonly<Record<string, unknown>>): boolean {
  return (
    metadata.dpop_bound_access_tokens === true || metadata.tls_client_certificate_bound_access_tokens === true
  );
}

/**
 * Whether a client is held to FAPI 2.0: by what makes it so, as clients made before say nothing else of it. Only the
 * operator holds a client to something; what an app registers itself for does not count.
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
