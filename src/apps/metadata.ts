/**
 * Metadata that members may set, with the names of RFC 7591, RFC 8705, RFC 9101, RFC 9126, RFC 9449 and OpenID Connect.
 * This file checks types and lengths. The authorization server checks the rest (`CheckMetadata`), with the same policy
 * as for self-registered apps.
 */

import Type, { type TSchema } from 'typebox';
import type { Client } from '../clients/client.ts';
import { authMethods, deviceCodeGrantType } from '../clients/client.ts';
import { keysMax } from '../clients/key_set.ts';
import type { SelfDescription } from '../clients/self_registered.ts';
import { StringEnum } from '../http/schema.ts';

export type Metadata = Record<string, unknown>;

/**
 * Completes and validates the metadata of an app that an account creates or changes.
 * @throws Problem 422
 */
export type CheckMetadata = (metadata: Metadata, id: string, issuedAt: Date) => SelfDescription;

/** Grant types that an account may choose. Implicit and password are deprecated and not available to new apps. */
export const accountGrantTypes = [
  'authorization_code',
  'refresh_token',
  deviceCodeGrantType,
  'client_credentials',
] as const;

const Text = (maxLength = 2_048) => Type.String({ minLength: 1, maxLength });
const Uri = () => Text();
const Texts = (maxItems: number) => Type.Array(Text(), { maxItems });

/** Schemas by name, in the order of responses. */
export const settableMembers: Readonly<Record<string, TSchema>> = {
  client_name: Type.String({ minLength: 1, maxLength: 100 }),
  client_uri: Uri(),
  logo_uri: Uri(),
  policy_uri: Uri(),
  tos_uri: Uri(),
  contacts: Type.Array(Type.String({ minLength: 3, maxLength: 254 }), { maxItems: 10 }),
  redirect_uris: Texts(20),
  post_logout_redirect_uris: Texts(20),
  grant_types: Type.Array(StringEnum(...accountGrantTypes), { maxItems: accountGrantTypes.length }),
  response_types: Type.Array(StringEnum('code'), { maxItems: 1 }),
  scope: Type.String({ maxLength: 4_096 }),
  token_endpoint_auth_method: StringEnum(...authMethods),
  token_endpoint_auth_signing_alg: Text(20),
  application_type: StringEnum('web', 'native'),
  jwks: Type.Object({ keys: Type.Array(Type.Object({}), { maxItems: keysMax }) }),
  jwks_uri: Uri(),
  id_token_signed_response_alg: Text(20),
  default_max_age: Type.Integer({ minimum: 0, maximum: 2_147_483_647 }),
  require_auth_time: Type.Boolean(),
  subject_type: StringEnum('public', 'pairwise'),
  backchannel_logout_uri: Uri(),
  backchannel_logout_session_required: Type.Boolean(),
  dpop_bound_access_tokens: Type.Boolean(),
  require_pushed_authorization_requests: Type.Boolean(),
  require_signed_request_object: Type.Boolean(),
  request_object_signing_alg: Text(20),
  tls_client_auth_san_dns: Text(),
  tls_client_auth_san_email: Text(),
  tls_client_auth_san_ip: Text(),
  tls_client_auth_san_uri: Text(),
  tls_client_auth_subject_dn: Text(),
  tls_client_certificate_bound_access_tokens: Type.Boolean(),
  software_id: Text(),
  software_version: Text(),
};

/** Members that are always returned, as null if they are not set. */
const shownAlways = ['client_uri', 'logo_uri', 'policy_uri', 'tos_uri'];

export function asOptional(members: Readonly<Record<string, TSchema>>): Record<string, TSchema> {
  return Object.fromEntries(Object.entries(members).map(([name, schema]) => [name, Type.Optional(schema)]));
}

/** Applies a merge patch (RFC 7396) to an app's metadata. Null resets a member to its default. */
export function applyAppPatch(given: Metadata, client: Client): Metadata {
  const current = metadataOf(client);
  // Reset, because their defaults depend on the grant types and the method.
  if (given.grant_types !== undefined) delete current.response_types;
  const method = given.token_endpoint_auth_method;
  if (method !== undefined && method !== 'private_key_jwt') delete current.token_endpoint_auth_signing_alg;
  return withoutNulls({ ...current, ...given });
}

/** The metadata of an app, with the names that members set. */
function metadataOf(client: Client): Metadata {
  const { metadata } = client;
  const known = Object.keys(settableMembers).filter((name) => metadata[name] !== undefined);
  return {
    ...Object.fromEntries(known.map((name) => [name, metadata[name]])),
    client_name: client.name,
    redirect_uris: [...client.redirectUris],
    grant_types: [...client.grantTypes],
    response_types: client.grantTypes.includes('authorization_code') ? ['code'] : [],
    scope: client.scopes.join(' '),
    token_endpoint_auth_method: client.authMethod,
  };
}

/** The metadata of an app, as responses contain it. */
export function shownMetadata(client: Client): Metadata {
  const metadata = metadataOf(client);
  const shown = Object.keys(settableMembers).flatMap((name): [string, unknown][] => {
    if (metadata[name] !== undefined) return [[name, metadata[name]]];
    return shownAlways.includes(name) ? [[name, null]] : [];
  });
  return { ...Object.fromEntries(shown), contacts: metadata.contacts ?? [] };
}

/** Null means not set. */
export function withoutNulls(metadata: Metadata): Metadata {
  return Object.fromEntries(Object.entries(metadata).filter(([, value]) => value !== null));
}
