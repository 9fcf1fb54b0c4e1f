/**
 * Client ID metadata documents (draft-ietf-oauth-client-id-metadata-document): an app whose `client_id` is the URL of
 * its metadata needs no registration. oidc-provider fetches, validates and caches the document. This file decides who may
 * cause a fetch and what a document may contain, and stores the result as a client.
 */

import { isDeepStrictEqual } from 'node:util';
import { errors, type KoaContextWithOIDC, Provider } from 'oidc-provider';
import { addressCounters, countGuessInTurn } from '../../accounts/throttle.ts';
import type { Client } from '../../clients/client.ts';
import { type SelfDescription, saveDocumentClient } from '../../clients/self_registered.ts';
import type { Database } from '../../database/database.ts';
import { TooManyWaitError } from '../../egress/origin_turns.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { NoTurnError } from '../../shared/limited_work.ts';
import { parseUrl } from '../../shared/url.ts';
import { isOfOtherPage } from '../endpoint_request.ts';
import { type FindByDocument, type FindClient, rememberEpoch } from '../provider_client.ts';
import type { ProviderOptions } from '../provider_options.ts';
import { toSelfDescription } from './client_storage.ts';
import {
  applyRegistrationPolicy,
  grantableScopes,
  type Metadata,
  type RegistrationPolicy,
  selfRegisteredGrantTypes,
} from './policy.ts';
import { countDocument } from './registration_limit.ts';

/** Bounds on the cache lifetime of a document in seconds, whatever its headers say. */
const cacheSeconds = { min: 60, max: 86_400 };
/**
 * Maximum fetches for one network address, in one window of the throttle. Above it, apps that are stored are used as they are: many users share a network, and anybody there
 * could keep them from their apps.
 */
const fetchesMax = 300;

/** Member that carries the scopes through oidc-provider's validation, which knows only some of them. */
const documentScopeMember = 'document_scope';

/** Members that only the server sets. They are listed for oidc-provider, which would otherwise drop them unread. */
export const serverMembers = [
  'registration_access_token',
  'registration_client_uri',
  documentScopeMember,
] as const;

/** Members that a document must not contain: they belong to a registration with this server. */
const forbiddenMembers = [
  'client_id_issued_at',
  'client_secret',
  'client_secret_expires_at',
  ...serverMembers,
];

/** Requests in which oidc-provider fetched a document instead of using its cache. */
const requestsWithFetch = new WeakSet<object>();
/** Requests whose network may cause no more fetches. */
const requestsAboveLimit = new WeakSet<object>();

type ProviderClient = InstanceType<Provider['Client']>;

/** oidc-provider's configuration of metadata documents. */
export function documentFeature({ db, settings, outgoing }: ProviderOptions) {
  return {
    clientIdMetadataDocument: {
      enabled: settings.clientMetadataDocuments,
      ack: 'draft-02',
      cacheDuration: cacheSeconds,
      async allowFetch(ctx: KoaContextWithOIDC, id: string) {
        requestsWithFetch.add(ctx);
        const isAllowed = await countFetch(db, ctx);
        if (isAllowed) outgoing.join(id);
        else requestsAboveLimit.add(ctx);
        return isAllowed;
      },
    },
  };
}

/** Requests that a page of another site has a browser send count apart. @returns false above the limit */
async function countFetch(db: Database, { req, ip }: KoaContextWithOIDC): Promise<boolean> {
  const name = isOfOtherPage(req) ? 'client document of a page' : 'client document';
  const groups = addressCounters(name, ip, fetchesMax).map((counter) => [counter]);
  return (await countGuessInTurn(db, groups)) === null;
}

/** Whether an id is the URL of a document. oidc-provider validates the URL further (dot segments and more). */
function isDocumentUrl(id: unknown): id is string {
  if (typeof id !== 'string' || !id.startsWith('https://') || id.length > 2_048) return false;
  const url = parseUrl(id);
  // The path distinguishes the apps of one host.
  return url !== null && url.pathname !== '/' && url.href === id;
}

/**
 * Completes and checks a document, before oidc-provider validates it and before it is stored.
 * @throws errors of RFC 7591 section 3.2.2
 */
export function applyDocumentPolicy(metadata: Metadata, policy: RegistrationPolicy): void {
  if (!isDocumentUrl(metadata.client_id)) throw new errors.InvalidClientMetadata('client_id is not a URL');
  const forbidden = forbiddenMembers.find((name) => metadata[name] !== undefined);
  if (forbidden !== undefined) {
    throw new errors.InvalidClientMetadata(`${forbidden} must not be in a metadata document`);
  }
  // oidc-provider's default requires a secret, which a document cannot have.
  if (metadata.token_endpoint_auth_method === 'client_secret_basic') {
    metadata.token_endpoint_auth_method = 'none';
  }
  if (typeof metadata.scope === 'string') metadata[documentScopeMember] = metadata.scope;
  delete metadata.scope;
  if (Array.isArray(metadata.grant_types)) {
    metadata.grant_types = metadata.grant_types.filter((type) => selfRegisteredGrantTypes.has(type));
  }
  applyRegistrationPolicy(sentResponseTypes(metadata), metadata, policy);
}

/** oidc-provider adds `code` if a document has no response types. Any other value comes from the document. */
function sentResponseTypes({ response_types }: Metadata): Metadata {
  return isDeepStrictEqual(response_types, ['code']) ? {} : { response_types };
}

/** @param find oidc-provider's own `Client.find`, which fetches documents */
export function createDocumentFinder(find: FindClient, options: ProviderOptions): FindByDocument {
  const { db, clients, scopes, settings } = options;

  return async (id, known) => {
    if (!settings.clientMetadataDocuments || !isDocumentUrl(id)) return undefined;
    try {
      // Requests at the same time share one fetch. None of them may wait for the place of another one.
      const client = await waitElsewhere(() => find(id));
      if (client === undefined) return undefined;
      requirePolicy(client);
      // A document from oidc-provider's cache is not stored: another node may have stored a newer one.
      const isFetched = Provider.ctx === undefined || requestsWithFetch.has(Provider.ctx);
      // oidc-provider's type for metadata has no index signature.
      const description = describe(client.metadata() as unknown as Metadata, new URL(id).host);
      if (known !== undefined && !isFetched) {
        return isSame(known, description) ? withEpoch(client, known) : 'stored';
      }
      if (known === undefined && !(await mayStore(db))) {
        throw new errors.InvalidClient('too many new apps, try again later');
      }
      if (known !== undefined && isSame(known, description)) return withEpoch(client, known);
      const saved = await saveDocumentClient(db, id, description);
      if (saved === undefined) return undefined;
      clients.forget(id);
      return withEpoch(client, saved);
    } catch (error) {
      if (!(error instanceof errors.OIDCProviderError)) throw error;
      const ctx = Provider.ctx;
      const isAboveLimit = ctx !== undefined && requestsAboveLimit.has(ctx);
      // Others of this network have used up its fetches or turns. The app has done nothing wrong.
      if (known !== undefined && (isAboveLimit || isUnasked(error))) return 'stored';
      // At the authorization endpoint the user sees the reason. Elsewhere the response is that for an unknown client.
      if (ctx?.oidc.route !== 'authorization') return undefined;
      // Prevents oidc-provider from fetching the document again to find a redirect URI for the error.
      Object.assign(ctx.oidc, { noclient: true });
      throw new errors.InvalidClient(error.error_description ?? 'the client is invalid', { cause: error });
    }
  };

  function describe(metadata: Metadata, host: string): SelfDescription {
    const { [documentScopeMember]: scope, ...rest } = metadata;
    const grantable = grantableScopes(scopes);
    const requested = typeof scope === 'string' ? scope.split(' ') : grantable;
    return toSelfDescription(
      rest,
      requested.filter((name) => grantable.includes(name)),
      host,
    );
  }
}

/** Whether one more app may become known. */
async function mayStore(db: Database): Promise<boolean> {
  const { ctx } = Provider;
  return countDocument(db, ctx?.ip ?? '', ctx !== undefined && isOfOtherPage(ctx.req));
}

/** Whether the document was not asked for, because there was no turn. */
function isUnasked(error: unknown): boolean {
  if (error instanceof NoTurnError || error instanceof TooManyWaitError) return true;
  return error instanceof Error && isUnasked(error.cause);
}

/** Rejects a client from oidc-provider's cache to which the policy was not applied. */
function requirePolicy({ grantTypes = [] }: ProviderClient): void {
  const other = grantTypes.find((type) => !selfRegisteredGrantTypes.has(type));
  if (other !== undefined) {
    throw new errors.InvalidClientMetadata(`grant_types of a metadata document must not contain ${other}`);
  }
}

function withEpoch(client: ProviderClient, { epoch }: Client): ProviderClient {
  rememberEpoch(client, epoch);
  return client;
}

function isSame(known: Client, description: SelfDescription): boolean {
  const { name, redirectUris, grantTypes, scopes, authMethod, metadata } = known;
  return isDeepStrictEqual({ name, redirectUris, grantTypes, scopes, authMethod, metadata }, description);
}
