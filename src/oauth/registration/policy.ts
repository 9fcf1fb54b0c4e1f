/**
 * The registration policy (RFC 7591 section 2), in addition to oidc-provider's checks: safe redirect URIs, consistent grant
 * and response types, scopes that users can grant, a displayable name, and a limit on every member.
 */

import { errors } from 'oidc-provider';
import { deviceCodeGrantType } from '../../clients/client.ts';
import { keySetError } from '../../clients/key_set.ts';
import { isAddressOfServer, redirectUriError } from '../../clients/redirect_uri.ts';
import { openidScopes, type ScopeCatalogue } from '../../grants/scopes.ts';
import { parseUrl } from '../../shared/url.ts';
import { isStorableJson } from '../storage/storage.ts';

/** Number of entries. */
const redirectUrisMax = 20;
/** Lengths in characters. */
const nameLengthMax = 100;
const textLengthMax = 2_048;

/**
 * Only the operator registers machine clients, because no user consents to them. Implicit and password are deprecated and
 * not available to new apps.
 */
export const selfRegisteredGrantTypes: ReadonlySet<string> = new Set([
  'authorization_code',
  'refresh_token',
  deviceCodeGrantType,
]);

/** URLs that the server shows, opens in a browser or fetches. */
const uriMembers = ['client_uri', 'logo_uri', 'policy_uri', 'tos_uri', 'jwks_uri', 'backchannel_logout_uri'];

/**
 * Characters that are invisible or change the text around them: also letters and symbols without a shape, such as U+3164 and
 * U+2800, and piles of combining marks, which cover other lines. The selectors U+FE0E and U+FE0F are part of emoji.
 */
const invisible = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u2800]|(?![\ufe0e\ufe0f])\p{DI}|\p{M}{6}/u;
const visible = /[\p{L}\p{N}\p{P}\p{S}]/u;

/** Metadata with the names of RFC 7591, before oidc-provider validates it. */
export type Metadata = Record<string, unknown>;

export interface RegistrationPolicy {
  catalogue: ScopeCatalogue;
  /** Allowed grant types. Default: those of self-registered apps. */
  grantTypes?: ReadonlySet<string>;
  /** Whether to keep `logo_uri`. True for apps of accounts, which an administrator may verify. No page loads the URL. */
  keepsLogo?: boolean;
  /** Development only: allows plain http on loopback for URLs that the server fetches. */
  allowLoopback: boolean;
  /** The server's base URL. Redirect URIs must not point there. */
  baseUrl: string;
}

/**
 * Checks the metadata that an app sent, and fills in what is missing.
 * @param sent the metadata as received
 * @param metadata the metadata with oidc-provider's defaults; changed in place
 * @returns the scopes of the client, which are removed from the metadata because oidc-provider knows only some of them
 * @throws errors of RFC 7591 section 3.2.2
 */
export function applyRegistrationPolicy(
  sent: Metadata,
  metadata: Metadata,
  policy: RegistrationPolicy,
): string[] {
  if (!isStorableJson(sent))
    throw invalid('the metadata contains characters or numbers that cannot be stored');
  refuseSoftwareStatement(sent.software_statement);
  checkTypes(sent, metadata, policy.grantTypes ?? selfRegisteredGrantTypes);
  checkUris(sent, metadata, policy);
  checkKeys(metadata);
  checkTexts(metadata);
  // RFC 7591 section 2: unsupported members are ignored. A logo of an unverified app would lend it credibility, and the
  // app's server would learn of each page view.
  if (policy.keepsLogo !== true) delete metadata.logo_uri;
  const scopes = readScopes(metadata.scope, policy.catalogue);
  delete metadata.scope;
  return scopes;
}

/** RFC 7591 section 2.3: no issuer of software statements is trusted. */
function refuseSoftwareStatement(statement: unknown): void {
  if (statement === undefined) return;
  const isJwt = typeof statement === 'string' && /^[\w-]+\.[\w-]+\.[\w-]+$/.test(statement);
  if (!isJwt) throw new errors.InvalidSoftwareStatement('software_statement is not a signed JWT');
  throw new errors.UnapprovedSoftwareStatement('this server approves no software statements');
}

/** RFC 7591 section 2.1: grant types and response types must correspond. */
function checkTypes(sent: Metadata, metadata: Metadata, allowed: ReadonlySet<string>): void {
  const given = metadata.grant_types;
  if (!Array.isArray(given)) throw invalid('grant_types must be an array');
  const other = given.find((type) => !allowed.has(type));
  if (other !== undefined) throw invalid(`grant_types must not contain ${printable(other)}`);
  // RFC 6749 section 4.4: a public client cannot authenticate, so anyone could get its tokens.
  if (given.includes('client_credentials') && metadata.token_endpoint_auth_method === 'none') {
    throw invalid('grant_types client_credentials requires an app that authenticates');
  }
  const usesCode = given.includes('authorization_code');
  if (sent.response_types === undefined || sent.response_types === null) {
    metadata.response_types = usesCode ? ['code'] : [];
  }
  const responses = metadata.response_types;
  if (!Array.isArray(responses)) throw invalid('response_types must be an array');
  if (responses.some((type) => type !== 'code')) throw invalid('response_types can only contain code');
  if (responses.includes('code') !== usesCode) {
    throw invalid('response_types code and grant_types authorization_code must be used together');
  }
}

function checkUris(sent: Metadata, metadata: Metadata, policy: RegistrationPolicy): void {
  const isNative = checkRedirects(metadata, 'redirect_uris');
  checkRedirects(metadata, 'post_logout_redirect_uris');
  for (const member of ['redirect_uris', 'post_logout_redirect_uris']) {
    const uris = (metadata[member] ?? []) as string[];
    const own = uris.find((uri) => isAddressOfServer(uri, policy.baseUrl));
    if (own !== undefined) throw invalid(`${member} ${printable(own)} is an address of this server`);
  }
  if (sent.application_type === undefined && isNative) metadata.application_type = 'native';
  for (const member of uriMembers) {
    const value = metadata[member];
    if (value === undefined) continue;
    const url = typeof value === 'string' ? parseUrl(value) : null;
    const isLocal = url?.protocol === 'http:' && redirectUriError(url.href) === undefined;
    const isGood = url?.protocol === 'https:' || (isLocal && policy.allowLoopback);
    if (!isGood || url.username !== '' || url.password !== '')
      throw invalid(`${member} must be an https URL`);
  }
}

function checkKeys({ jwks }: Metadata): void {
  const error = jwks === undefined ? undefined : keySetError(jwks);
  if (error !== undefined) throw invalid(error);
}

/** @returns whether a URI has a private-use scheme, which belongs to a native app */
function checkRedirects(metadata: Metadata, member: string): boolean {
  const uris = metadata[member] ?? [];
  if (!Array.isArray(uris)) throw invalid(`${member} must be an array`);
  if (uris.length > redirectUrisMax) throw invalid(`${member} has more than ${redirectUrisMax} members`);
  for (const uri of uris) {
    const error = typeof uri === 'string' ? redirectUriError(uri) : 'is not a string';
    if (error !== undefined) throw invalid(`${member} ${printable(uri)} ${error}`);
  }
  return uris.some((uri: string) => !/^https?:/i.test(uri));
}

function checkTexts(metadata: Metadata): void {
  for (const [member, value] of Object.entries(metadata)) {
    if (typeof value === 'string' && value.length > textLengthMax) throw invalid(`${member} is too long`);
  }
  const { client_name: name } = metadata;
  if (name === undefined) return;
  const isName = typeof name === 'string' && visible.test(name) && !invisible.test(name);
  if (!isName || name.length > nameLengthMax) {
    throw invalid(`client_name must have 1 to ${nameLengthMax} visible characters`);
  }
}

/** All scopes that users can grant. */
export function grantableScopes(catalogue: ScopeCatalogue): string[] {
  const scopes = [...openidScopes, ...catalogue.values()].filter((each) => each.isForUsers);
  return scopes.map((each) => each.name);
}

/**
 * The requested scopes that are available (RFC 7591 section 3.2.1: the response contains the result). Default: all.
 * Clients often request every scope that some document lists.
 */
function readScopes(scope: unknown, catalogue: ScopeCatalogue): string[] {
  const offered = grantableScopes(catalogue);
  if (scope === undefined || scope === null || scope === '') return offered;
  if (typeof scope !== 'string') throw invalid('scope must be a string');
  const scopes = [...new Set(scope.split(' '))].filter((name) => offered.includes(name));
  if (scopes.length === 0) throw invalid('scope contains no scope that users can grant');
  return scopes;
}

/** oidc-provider gives descriptions that begin with `redirect_uris` the code `invalid_redirect_uri` of RFC 7591. */
function invalid(description: string): errors.InvalidClientMetadata {
  return new errors.InvalidClientMetadata(description);
}

/** Shortens a value to the characters of an `error_description` (RFC 6749 section 5.2). */
function printable(value: unknown): string {
  const text = typeof value === 'string' ? value : String(JSON.stringify(value));
  return text.slice(0, 100).replaceAll(/[^\x20-\x21\x23-\x5b\x5d-\x7e]/g, '?');
}
