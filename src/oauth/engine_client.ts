/**
 * A client in the form of the engine (RFC 7591 metadata), and the client look-up that the engine is given: from
 * our own cache, with secrets that are only known by their digests.
 */

import { randomBytes } from 'node:crypto';
import { errors, Provider } from 'oidc-provider';
import type { Client } from '../clients/client.ts';
import type { CachedClient, ClientCache } from '../clients/client_cache.ts';
import { matchesClientSecret } from '../clients/client_secret.ts';
import { isFapi2Client } from '../clients/metadata.ts';
import { isOwnClient } from '../clients/own_clients.ts';
import { isAddressOfServer } from '../clients/redirect_uri.ts';
import type { OAuthSettings } from './settings.ts';

type EngineClient = InstanceType<Provider['Client']>;

/** The engine wants a secret where a method has one. Nobody knows this one, and nothing is compared with it. */
export const placeholderSecret = randomBytes(32).toString('base64url');

/** Whether the engine's placeholder stands where a secret would. */
export function isUnknownSecret(secret: string): boolean {
  return secret === placeholderSecret;
}

/**
 * Stands where the engine's hook for further metadata gets a request: the metadata is our own, and was checked before it
 * was stored. Nothing that a client says of itself can say this.
 */
export const storedClient: object = Object.freeze({});

/** Whether the client itself is registered to do without PKCE. */
export function requiresNoPkce(client: object): boolean {
  return cachedClients.get(client)?.client.requirePkce === false;
}

/** Whether the operator holds the client to FAPI 2.0 (`nuncio client create --fapi2`). */
export function isHeldToFapi2(client: object): boolean {
  const known = cachedClients.get(client)?.client;
  return known !== undefined && isFapi2Client(known);
}

/** By the engine's client. */
const cachedClients = new WeakMap<object, CachedClient>();
/** By the engine's client, also where that is a metadata document's. */
const epochs = new WeakMap<object, string>();

/** The epoch that the client was found in; undefined where it was not found by `Client.find`. */
export function epochOf(client: object | undefined): string | undefined {
  return client && epochs.get(client);
}

/** For whoever finds clients in another way. */
export function rememberEpoch(client: object, epoch: string): void {
  epochs.set(client, epoch);
}

/** Replaces the engine's own way to find a client and to compare its secret. */
export function useClients(
  provider: Provider,
  clients: ClientCache,
  findByDocument: (id: string, known: Client | undefined) => Promise<EngineClient | undefined>,
  settings: OAuthSettings,
): void {
  const known = new WeakMap<CachedClient, EngineClient>();
  const { Client } = provider;

  Client.find = async (id: string) => {
    if (typeof id !== 'string' || id === '') return undefined;
    const cached = await clients.findSuspendedToo(id);
    if (cached?.client.state === 'suspended') return refuseSuspended();
    if (cached === undefined || cached.client.origin === 'document') {
      return findByDocument(id, cached?.client);
    }
    let client = known.get(cached);
    if (client === undefined) {
      client = new (Client as unknown as new (metadata: object, ctx: object) => EngineClient)(
        toMetadata(cached.client, settings),
        storedClient,
      );
      showPresentedSecret(client, cached);
      known.set(cached, client);
      cachedClients.set(client, cached);
      rememberEpoch(client, cached.client.epoch);
    }
    return client;
  };

  Client.prototype.compareClientSecret = function (presented: string) {
    const cached = cachedClients.get(this);
    return cached !== undefined && matchesClientSecret(cached.secrets, presented);
  };

  const grantTypeAllowed = Client.prototype.grantTypeAllowed;
  Client.prototype.grantTypeAllowed = function (type: string) {
    const isAllowed = grantTypeAllowed.call(this, type);
    const oidc = Provider.ctx?.oidc;
    const isAsked =
      (oidc?.route === 'token' && oidc.params?.grant_type === type) || oidc?.route === 'device_authorization';
    // RFC 6749 section 5.2: the engine would say invalid_request.
    if (!isAllowed && isAsked) {
      throw new errors.UnauthorizedClient('requested grant type is not allowed for this client');
    }
    return isAllowed;
  };

  const responseTypeAllowed = Client.prototype.responseTypeAllowed;
  Client.prototype.responseTypeAllowed = function (type) {
    // RFC 6749 section 4.1.2.1: the same.
    if (responseTypeAllowed.call(this, type)) return true;
    throw new errors.UnauthorizedClient('requested response_type is not allowed for this client');
  };

  // RFC 8252 section 7.3: the port of a loopback redirect is the app's to choose when it starts. The server's own apps
  // run on the server's own port: on any other port of a loopback address another program would get their codes.
  Client.prototype.redirectUriAllowed = function (uri: string) {
    const registered = this.redirectUris ?? [];
    const isExact = registered.includes(uri);
    if (isOwnClient(this.clientId)) return isExact;
    // A port of its own choice must not lead an app to this server's pages; the operator may register one there.
    if (isAddressOfServer(uri, provider.issuer)) {
      return isExact && cachedClients.get(this)?.client.origin === 'operator';
    }
    return isRedirectUriAllowed(registered, uri);
  };
}

/**
 * A suspended app is not found. A person who was sent here by it sees why.
 * @throws InvalidClient at the authorization endpoint
 */
function refuseSuspended(): undefined {
  const ctx = Provider.ctx;
  if (ctx?.oidc.route !== 'authorization') return undefined;
  // Nobody is redirected to it either.
  Object.assign(ctx.oidc, { noclient: true });
  throw new errors.InvalidClient('the app is suspended by the operator of this server');
}

/** Exact string comparison (RFC 9700 section 2.1), but for the port of a loopback address. */
export function isRedirectUriAllowed(registered: readonly string[], uri: string): boolean {
  if (registered.includes(uri)) return true;
  const portless = withoutLoopbackPort(uri);
  return portless !== undefined && registered.some((known) => withoutLoopbackPort(known) === portless);
}

const loopback = /^(http:\/\/(?:127\.0\.0\.1|\[::1\]|localhost))(?::(\d{1,5}))?(\/[^\\]*)?$/;

/** Undefined where the text is not plain http on a loopback host, written as it is registered. */
function withoutLoopbackPort(uri: string): string | undefined {
  const match = loopback.exec(uri);
  if (match === null || Number(match[2] ?? 80) > 65_535) return undefined;
  return `${match[1]}${match[3] ?? ''}`;
}

/**
 * RFC 7592 section 2.2: who changes a registration may send the secret along, and the engine compares it with the
 * one it has. It is shown the one that was sent, where that is right.
 */
function showPresentedSecret(client: EngineClient, { secrets }: CachedClient): void {
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
  // What the operator has switched off is not there, whatever a client was registered for.
  const isOff = (type: string) =>
    (type === 'password' && !settings.password) ||
    (type === 'implicit' && !settings.implicit) ||
    // RFC 6749 section 4.4: for confidential clients alone, also where one was registered otherwise before.
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
