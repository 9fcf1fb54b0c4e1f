/**
 * What an app may say of itself when it registers (RFC 7591 section 2): beside what the engine checks, redirect
 * URIs that nobody can abuse, grant and response types that fit together, scopes that users can allow, a name that
 * can be shown, and a limit on everything.
 */

import { errors } from 'oidc-provider';
import { deviceCodeGrantType } from '../../clients/client.ts';
import { isAddressOfServer, redirectUriFault } from '../../clients/redirect_uri.ts';
import { openidScopes, type ScopeCatalogue } from '../../grants/scopes.ts';
import { isStorableJson } from '../storage/storage.ts';

/** In all. */
const redirectUrisMax = 20;
const jwksKeysMax = 20;
/** Characters. */
const nameLengthMax = 100;
const textLengthMax = 2_048;

/**
 * Machines that speak for themselves are the operator's to register: nobody would be asked whether they may.
 * Implicit and password are deprecated, and new apps do not begin with them.
 */
export const selfRegisteredGrantTypes: ReadonlySet<string> = new Set([
  'authorization_code',
  'refresh_token',
  deviceCodeGrantType,
]);

/** Metadata that is shown or opened in a browser, or fetched by us. */
const uriMembers = ['client_uri', 'logo_uri', 'policy_uri', 'tos_uri', 'jwks_uri', 'backchannel_logout_uri'];

/** What shows nothing, or changes what stands around it. */
const invisible = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/u;

/** Metadata in the names of RFC 7591, not yet checked by the engine. */
export type Metadata = Record<string, unknown>;

export interface RegistrationPolicy {
  catalogue: ScopeCatalogue;
  /** Grants that may be asked for; by default those of apps that register themselves. */
  grantTypes?: ReadonlySet<string>;
  /** Whether `logo_uri` is kept: of apps that accounts make, which an administrator may verify. No page of ours loads it. */
  keepsLogo?: boolean;
  /** For development: plain http on loopback for what we fetch. */
  allowLoopback: boolean;
  /** This server's own: what is sent back there is for its own pages. */
  baseUrl: string;
}

/**
 * Checks what was sent and fills in what was left out.
 * @param sent the metadata as it came
 * @param metadata the metadata with the engine's defaults: changed in place
 * @returns the scopes that the client gets; they are taken out of the metadata, as the engine knows only some
 * @throws errors of RFC 7591 section 3.2.2
 */
export function applyRegistrationPolicy(
  sent: Metadata,
  metadata: Metadata,
  policy: RegistrationPolicy,
): string[] {
  if (!isStorableJson(sent)) throw invalid('the metadata has text in it that cannot be kept');
  refuseSoftwareStatement(sent.software_statement);
  checkTypes(sent, metadata, policy.grantTypes ?? selfRegisteredGrantTypes);
  checkUris(sent, metadata, policy);
  checkTexts(metadata);
  // RFC 7591 section 2: what is not supported is left out. Nobody has checked who an app says it is, and a picture of its
  // choice would say more than its name; a picture from its own server would tell it of every visit.
  if (policy.keepsLogo !== true) delete metadata.logo_uri;
  const scopes = readScopes(metadata.scope, policy.catalogue);
  delete metadata.scope;
  return scopes;
}

/** RFC 7591 section 2.3: nobody's statements are trusted, and one that is no JWT is not one at all. */
function refuseSoftwareStatement(statement: unknown): void {
  if (statement === undefined) return;
  const isJwt = typeof statement === 'string' && /^[\w-]+\.[\w-]+\.[\w-]+$/.test(statement);
  if (!isJwt) throw new errors.InvalidSoftwareStatement('software_statement is not a signed JWT');
  throw new errors.UnapprovedSoftwareStatement('no software statements are approved here');
}

/** RFC 7591 section 2.1: grant types and response types say the same. */
function checkTypes(sent: Metadata, metadata: Metadata, allowed: ReadonlySet<string>): void {
  const given = metadata.grant_types;
  if (!Array.isArray(given)) throw invalid('grant_types must be an array');
  const other = given.find((type) => !allowed.has(type));
  if (other !== undefined) throw invalid(`grant_types must not contain ${printable(other)}`);
  // RFC 6749 section 4.4: nobody proves to be a public client, so everybody would get its tokens.
  if (given.includes('client_credentials') && metadata.token_endpoint_auth_method === 'none') {
    throw invalid('grant_types client_credentials needs an app that authenticates');
  }
  const usesCode = given.includes('authorization_code');
  if (sent.response_types === undefined || sent.response_types === null) {
    metadata.response_types = usesCode ? ['code'] : [];
  }
  const responses = metadata.response_types;
  if (!Array.isArray(responses)) throw invalid('response_types must be an array');
  if (responses.some((type) => type !== 'code')) throw invalid('response_types can only contain code');
  if (responses.includes('code') !== usesCode) {
    throw invalid('response_types code and grant_types authorization_code go together');
  }
}

function checkUris(sent: Metadata, metadata: Metadata, policy: RegistrationPolicy): void {
  const isNative = checkRedirects(metadata, 'redirect_uris');
  checkRedirects(metadata, 'post_logout_redirect_uris');
  for (const member of ['redirect_uris', 'post_logout_redirect_uris']) {
    const uris = (metadata[member] ?? []) as string[];
    const own = uris.find((uri) => isAddressOfServer(uri, policy.baseUrl));
    if (own !== undefined) throw invalid(`${member} ${printable(own)} is of this server itself`);
  }
  if (sent.application_type === undefined && isNative) metadata.application_type = 'native';
  for (const member of uriMembers) {
    const value = metadata[member];
    if (value === undefined) continue;
    const url = typeof value === 'string' ? URL.parse(value) : null;
    const isLocal = url?.protocol === 'http:' && redirectUriFault(url.href) === undefined;
    const isGood = url?.protocol === 'https:' || (isLocal && policy.allowLoopback);
    if (!isGood || url.username !== '' || url.password !== '')
      throw invalid(`${member} must be an https URL`);
  }
  const keys = (metadata.jwks as { keys?: unknown } | undefined)?.keys;
  if (Array.isArray(keys) && keys.length > jwksKeysMax)
    throw invalid(`jwks has more than ${jwksKeysMax} keys`);
}

/** @returns whether one of them leads to an installed app */
function checkRedirects(metadata: Metadata, member: string): boolean {
  const uris = metadata[member] ?? [];
  if (!Array.isArray(uris)) throw invalid(`${member} must be an array`);
  if (uris.length > redirectUrisMax) throw invalid(`${member} has more than ${redirectUrisMax} members`);
  for (const uri of uris) {
    const fault = typeof uri === 'string' ? redirectUriFault(uri) : 'is not a string';
    if (fault !== undefined) throw invalid(`${member} ${printable(uri)} ${fault}`);
  }
  return uris.some((uri: string) => !/^https?:/i.test(uri));
}

function checkTexts(metadata: Metadata): void {
  for (const [member, value] of Object.entries(metadata)) {
    if (typeof value === 'string' && value.length > textLengthMax) throw invalid(`${member} is too long`);
  }
  const { client_name: name } = metadata;
  if (name === undefined) return;
  if (typeof name !== 'string' || name.trim() === '' || name.length > nameLengthMax || invisible.test(name)) {
    throw invalid(`client_name must have 1 to ${nameLengthMax} visible characters`);
  }
}

/** All that users can allow. */
export function offeredScopes(catalogue: ScopeCatalogue): string[] {
  const scopes = [...openidScopes, ...catalogue.values()].filter((each) => each.isForUsers);
  return scopes.map((each) => each.name);
}

/**
 * What it asks for as far as it is offered (RFC 7591 section 3.2.1: the answer says what it got), by default all of
 * it. Clients ask for whatever some document lists.
 */
function readScopes(scope: unknown, catalogue: ScopeCatalogue): string[] {
  const offered = offeredScopes(catalogue);
  if (scope === undefined || scope === null || scope === '') return offered;
  if (typeof scope !== 'string') throw invalid('scope must be a string');
  const scopes = [...new Set(scope.split(' '))].filter((name) => offered.includes(name));
  if (scopes.length === 0) throw invalid('scope has none of those that users can allow');
  return scopes;
}

/** An error whose description begins with redirect_uris gets the code of its own that RFC 7591 has for it. */
function invalid(description: string): errors.InvalidClientMetadata {
  return new errors.InvalidClientMetadata(description);
}

/** Short and in the characters of an error_description (RFC 6749 section 5.2). */
function printable(value: unknown): string {
  const text = typeof value === 'string' ? value : String(JSON.stringify(value));
  return text.slice(0, 100).replaceAll(/[^\x20-\x21\x23-\x5b\x5d-\x7e]/g, '?');
}
