/**
 * Clients in oidc-provider's form (RFC 7591 metadata): their lookup, secrets and redirect URIs.
 */

import { randomBytes } from 'node:crypto';
import { errors, Provider } from 'oidc-provider';
import type { Client } from '../clients/client.ts';
import type { CachedClient } from '../clients/client_cache.ts';
import { matchesClientSecret } from '../clients/client_secret.ts';
import { isFapi2Client } from '../clients/metadata.ts';
import { isOwnClient } from '../clients/own_clients.ts';
import { isAddressOfServer } from '../clients/redirect_uri.ts';
import type { ProviderOptions } from './provider_options.ts';
import type { OAuthSettings } from './settings.ts';

type ProviderClient = InstanceType<Provider['Client']>;

/** oidc-provider requires a secret for some methods. This random value is never compared with anything. */
export const placeholderSecret = randomBytes(32).toString('base64url');

/** Whether the value is oidc-provider's placeholder. */
export function isUnknownSecret(secret: string): boolean {
  return secret === placeholderSecret;
}

/**
 * Passed to oidc-provider's `extraClientMetadata` validator in place of a request context, for stored clients that were
 * validated before. No client can forge it, because it is compared by identity.
 */
export const storedClient: object = Object.freeze({});

/** Whether the client is registered without PKCE. */
export function isRegisteredWithoutPkce(client: object): boolean {
  return cachedClients.get(client)?.client.requirePkce === false;
}

/** Whether the operator registered the client for FAPI 2.0 (`nuncio client create --fapi2`). */
export function isFapi2(client: object): boolean {
  const known = cachedClients.get(client)?.client;
  return known !== undefined && isFapi2Client(known);
}

/** Whether the operator registered the client, and so vouches for its hosts. */
export function isOfOperator(client: object): boolean {
  return cachedClients.get(client)?.client.origin === 'operator';
}

/** Keyed by oidc-provider's client object. */
const cachedClients = new WeakMap<object, CachedClient>();
/** Keyed by oidc-provider's client object, including clients from metadata documents. */
const epochs = new WeakMap<object, string>();

/** The client's epoch when it was loaded; undefined if `Client.find` did not return the client. */
export function epochOf(client: object | undefined): string | undefined {
  return client && epochs.get(client);
}

/** Records the epoch of a client that is found in another way. */
export function rememberEpoch(client: object, epoch: string): void {
  epochs.set(client, epoch);
}

/**
 * Finds a client by its document. `known` is the stored client, if there is one.
 * @returns `stored` if `known` is newer than the document in this node's cache, so that every node uses the same version of
 *   an app, the one that an administrator can verify
 */
export type FindByDocument = (
  id: string,
  known: Client | undefined,
) => Promise<ProviderClient | 'stored' | undefined>;

export type FindClient = (id: string) => Promise<ProviderClient | undefined>;

/** @returns oidc-provider's `Client.find`, with the clients of our cache */
export function createClientFinder(
  { Client }: Provider,
  { clients, settings }: Pick<ProviderOptions, 'clients' | 'settings'>,
  findByDocument: FindByDocument,
): FindClient {
  const known = new WeakMap<CachedClient, ProviderClient>();

  return async (id) => {
    if (typeof id !== 'string' || id === '') return undefined;
    const cached = await clients.findIncludingSuspended(id);
    if (cached?.client.state === 'suspended') return refuseSuspended();
    if (cached === undefined || cached.client.origin === 'document') {
      const found = await findByDocument(id, cached?.client);
      if (found !== 'stored') return found;
      if (cached === undefined) return undefined;
    }
    let client = known.get(cached);
    if (client === undefined) {
      // oidc-provider's type omits the second parameter, the context of the validation.
      client = new (Client as unknown as new (metadata: object, ctx: object) => ProviderClient)(
        toMetadata(cached.client, settings),
        storedClient,
      );
      exposePresentedSecret(client, cached);
      known.set(cached, client);
      cachedClients.set(client, cached);
      rememberEpoch(client, cached.client.epoch);
    }
    return client;
  };
}

/** Whether the presented secret is one of the client's. */
export function isSecretOf(client: ProviderClient, presented: string): boolean {
  const cached = cachedClients.get(client);
  return cached !== undefined && matchesClientSecret(cached.secrets, presented);
}

/**
 * RFC 8252 section 7.3: a native app chooses the port of its loopback redirect at start. The server's own apps must use
 * the server's port: on any other port, another program on the machine would receive their codes.
 */
export function isRedirectOf(client: ProviderClient, uri: string, issuer: string): boolean {
  const registered = client.redirectUris ?? [];
  const isExact = registered.includes(uri);
  if (isOwnClient(client.clientId)) return isExact;
  // No app may choose a port that leads to this server's pages. Only the operator may register such a URI.
  if (isAddressOfServer(uri, issuer)) {
    return isExact && isOfOperator(client);
  }
  return isRedirectUriAllowed(registered, uri);
}

/** The error code is that of an unknown client; only the page distinguishes the two. */
export class SuspendedClientError extends errors.InvalidClient {
  constructor() {
    super('the app is suspended by the operator of this server');
  }
}

/**
 * A suspended app is treated as unknown. At the authorization endpoint the user sees the reason.
 * @throws SuspendedClientError at the authorization endpoint
 */
function refuseSuspended(): undefined {
  const ctx = Provider.ctx;
  if (ctx?.oidc.route !== 'authorization') return undefined;
  // Prevents a redirect to the app.
  Object.assign(ctx.oidc, { noclient: true });
  throw new SuspendedClientError();
}

/** Exact string comparison (RFC 9700 section 2.1), except for the port of a loopback address. */
function isRedirectUriAllowed(registered: readonly string[], uri: string): boolean {
  if (registered.includes(uri)) return true;
  const portless = withoutLoopbackPort(uri);
  return portless !== undefined && registered.some((known) => withoutLoopbackPort(known) === portless);
}

const loopback = /^(http:\/\/(?:127\.0\.0\.1|\[::1\]|localhost))(?::(\d{1,5}))?(\/[^\\]*)?$/;

/** @returns undefined unless the URI is plain http on a loopback host, spelled as in the registration */
function withoutLoopbackPort(uri: string): string | undefined {
  const match = loopback.exec(uri);
  if (match === null || Number(match[2] ?? 80) > 65_535) return undefined;
  return `${match[1]}${match[3] ?? ''}`;
}

/**
 * RFC 7592 section 2.2: an update of a registration may contain the secret, which oidc-provider compares with the client's.
 * The client has the presented secret if it is correct, and the placeholder otherwise.
 */
function exposePresentedSecret(client: ProviderClient, { secrets }: CachedClient): void {
  if (client.clientSecret === undefined) return;
  Object.defineProperty(client, 'clientSecret', {
    enumerable: true,
    get: () => {
      const oidc = Provider.ctx?.oidc;
      const presented = oidc?.route === 'client_update' ? oidc.body?.client_secret : undefined;
      const isRight = typeof presented === 'string' && matchesClientSecret(secrets, presented);
      return isRight ? presented : placeholderSecret;
    },
  });
}

function toMetadata(client: Client, settings: OAuthSettings): Record<string, unknown> {
  // Removes grant types that the operator turned off, also if the client is registered for them.
  const isOff = (type: string) =>
    (type === 'password' && !settings.password) ||
    (type === 'implicit' && !settings.implicit) ||
    // RFC 6749 section 4.4: confidential clients only.
    (type === 'client_credentials' && client.authMethod === 'none');
  const grantTypes = client.grantTypes.filter((type) => !isOff(type));
  const hasSecret = client.authMethod.startsWith('client_secret_');
  const usesCode = client.grantTypes.includes('authorization_code');
  const isNative = client.redirectUris.some((uri) => !/^https?:/i.test(uri));
  return {
    ...client.metadata,
    client_id: client.id,
    client_id_issued_at: Math.floor(client.createdAt.getTime() / 1_000),
    client_name: client.name,
    ...(hasSecret ? { client_secret: placeholderSecret } : {}),
    redirect_uris: [...client.redirectUris],
    grant_types: grantTypes,
    response_types: [
      ...(usesCode ? ['code'] : []),
      ...(grantTypes.includes('implicit') ? ['id_token token'] : []),
    ],
    token_endpoint_auth_method: client.authMethod,
    application_type: client.metadata.application_type ?? (isNative ? 'native' : 'web'),
  };
}
