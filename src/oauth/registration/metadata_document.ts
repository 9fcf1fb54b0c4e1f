/**
 * Client ID metadata documents (draft-ietf-oauth-client-id-metadata-document): an app whose client_id is the URL of
 * its own metadata needs no registration. The engine fetches, checks and caches the document; we say from where it
 * may be fetched, what it may contain, and keep what it says as a client like any other.
 */

import { isDeepStrictEqual } from 'node:util';
import { errors, type KoaContextWithOIDC, Provider } from 'oidc-provider';
import { addressCounters, countGuessInTurn } from '../../accounts/throttle.ts';
import type { Client } from '../../clients/client.ts';
import { type SelfDescription, saveDocumentClient } from '../../clients/self_registered.ts';
import { rememberEpoch } from '../engine_client.ts';
import type { EngineOptions } from '../engine_options.ts';
import { toSelfDescription } from './client_storage.ts';
import {
  applyRegistrationPolicy,
  type Metadata,
  offeredScopes,
  type RegistrationPolicy,
  selfRegisteredGrantTypes,
} from './policy.ts';
import { countDocument } from './throttle.ts';

/** Seconds that a document is believed, whatever its headers say. */
const cacheSeconds = { min: 60, max: 86_400 };
/** Documents fetched for one network address, in a window of the throttle. */
const fetchesMax = 300;

/** Where the engine's metadata of a document keeps the scopes, of which it knows only some. */
const documentScopeMember = 'document_scope';

/** Members that the engine would not read by itself, and that only the server gives. */
export const serverMembers = [
  'registration_access_token',
  'registration_client_uri',
  documentScopeMember,
] as const;

/** What a document must not say: that it was registered here. */
const refusedMembers = ['client_id_issued_at', 'client_secret', 'client_secret_expires_at', ...serverMembers];

/** Requests in which the engine did not have the document any more. */
const fetchedIn = new WeakSet<object>();

type EngineClient = InstanceType<Provider['Client']>;

export function documentFeature({ db, settings }: EngineOptions) {
  return {
    clientIdMetadataDocument: {
      enabled: settings.clientMetadataDocuments,
      ack: 'draft-02',
      cacheDuration: cacheSeconds,
      async allowFetch(ctx: KoaContextWithOIDC) {
        fetchedIn.add(ctx);
        const counters = addressCounters('client document', ctx.ip, fetchesMax);
        return (
          (await countGuessInTurn(
            db,
            counters.map((counter) => [counter]),
          )) === null
        );
      },
    },
  };
}

/** Whether an id is the URL of a document; what else is wrong with it the engine finds (dot segments and more). */
export function isDocumentUrl(id: unknown): id is string {
  if (typeof id !== 'string' || !id.startsWith('https://') || id.length > 2_048) return false;
  const url = URL.parse(id);
  // The path is what tells the apps of one host apart.
  return url !== null && url.pathname !== '/' && url.href === id;
}

/**
 * Completes and checks what a document says, before the engine does and before it is kept.
 * @throws errors of RFC 7591 section 3.2.2
 */
export function applyDocumentPolicy(metadata: Metadata, policy: RegistrationPolicy): void {
  if (!isDocumentUrl(metadata.client_id)) throw new errors.InvalidClientMetadata('client_id is not a URL');
  const refused = refusedMembers.find((name) => metadata[name] !== undefined);
  if (refused !== undefined) {
    throw new errors.InvalidClientMetadata(`${refused} must not be in a metadata document`);
  }
  // The default is a method with a secret, which nobody could know.
  if (metadata.token_endpoint_auth_method === 'client_secret_basic') {
    metadata.token_endpoint_auth_method = 'none';
  }
  if (typeof metadata.scope === 'string') metadata[documentScopeMember] = metadata.scope;
  delete metadata.scope;
  if (Array.isArray(metadata.grant_types)) {
    metadata.grant_types = metadata.grant_types.filter((type) => selfRegisteredGrantTypes.has(type));
  }
  applyRegistrationPolicy(saidResponseTypes(metadata), metadata, policy);
}

/** The engine fills in `code` where a document names no response types; anything else the document itself said. */
function saidResponseTypes({ response_types }: Metadata): Metadata {
  return isDeepStrictEqual(response_types, ['code']) ? {} : { response_types };
}

/** Finds a client by its document. `known` is what was kept of it, if it was. */
export type FindByDocument = (id: string, known: Client | undefined) => Promise<EngineClient | undefined>;

/** To be called before the engine's own look-up is replaced. */
export function createDocumentFinder(provider: Provider, options: EngineOptions): FindByDocument {
  const { db, clients, scopes, settings } = options;
  const engineFind = provider.Client.find.bind(provider.Client);

  return async (id, known) => {
    if (!settings.clientMetadataDocuments || !isDocumentUrl(id)) return undefined;
    try {
      const client = await engineFind(id);
      if (client === undefined) return undefined;
      requirePolicy(client);
      // What this node still has in memory is no news: another one may have kept a newer document meanwhile.
      const isNews = Provider.ctx === undefined || fetchedIn.has(Provider.ctx);
      if (known !== undefined && !isNews) return inEpoch(client, known);
      const description = describe(client.metadata() as unknown as Metadata, new URL(id).host);
      if (known === undefined && !(await countDocument(db, Provider.ctx?.ip ?? ''))) {
        throw new errors.InvalidClient('too many apps came to be known here, try again later');
      }
      if (known !== undefined && isSame(known, description)) return inEpoch(client, known);
      const saved = await saveDocumentClient(db, id, description);
      if (saved === undefined) return undefined;
      clients.forget(id);
      return inEpoch(client, saved);
    } catch (error) {
      if (!(error instanceof errors.OIDCProviderError)) throw error;
      const ctx = Provider.ctx;
      // Where nobody is to be authenticated a person sees the reason; an answer to an app is that of any other.
      if (ctx?.oidc.route !== 'authorization') return undefined;
      // The engine would fetch it once more, to see whether there is anywhere to redirect to.
      Object.assign(ctx.oidc, { noclient: true });
      throw new errors.InvalidClient(error.error_description ?? 'the client is invalid', { cause: error });
    }
  };

  function describe(metadata: Metadata, host: string): SelfDescription {
    const { [documentScopeMember]: asked, ...rest } = metadata;
    const offered = offeredScopes(scopes);
    const wanted = typeof asked === 'string' ? asked.split(' ') : offered;
    return toSelfDescription(
      rest,
      wanted.filter((scope) => offered.includes(scope)),
      host,
    );
  }
}

/** The client that the engine goes by is the one that the policy was applied to. */
function requirePolicy({ grantTypes = [] }: EngineClient): void {
  const other = grantTypes.find((type) => !selfRegisteredGrantTypes.has(type));
  if (other !== undefined) {
    throw new errors.InvalidClientMetadata(`grant_types of a metadata document must not contain ${other}`);
  }
}

function inEpoch(client: EngineClient, { epoch }: Client): EngineClient {
  rememberEpoch(client, epoch);
  return client;
}

function isSame(known: Client, description: SelfDescription): boolean {
  const { name, redirectUris, grantTypes, scopes, authMethod, metadata } = known;
  return isDeepStrictEqual({ name, redirectUris, grantTypes, scopes, authMethod, metadata }, description);
}
