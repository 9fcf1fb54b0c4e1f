/**
 * The members of oidc-provider that Nuncio replaces where no setting, adapter or middleware serves, each with the reason.
 * package.json pins oidc-provider's version; test/oauth/overrides.test.ts fails if another version has changed a member.
 */

import { type Configuration, errors, Provider } from 'oidc-provider';
import {
  type AddKey,
  addUsableKeys,
  type ClearKeys,
  forgetKeys,
  type RefreshKeys,
  refreshElsewhere,
  type SelectKeys,
  selectFewKeys,
} from './client_keys.ts';
import { recordLogout, type SendLogout } from './logout/notifier.ts';
import { newOpaqueToken } from './opaque_token.ts';
import {
  createClientFinder,
  type FindClient,
  isRedirectOf,
  isSecretOf,
  storedClient,
} from './provider_client.ts';
import type { ProviderOptions } from './provider_options.ts';
import { createResponseMode, type ResponseMode } from './redirects.ts';
import { createDocumentFinder } from './registration/metadata_document.ts';
import { refreshTokenValues } from './storage/refresh_token.ts';
import { useProof } from './storage/used_proof.ts';

type ProviderClient = InstanceType<Provider['Client']>;

/** Members that oidc-provider's types omit. */
interface ProviderSession {
  exp?: number;
  loginTs?: number;
  oldId?: string;
}
interface ProviderToken {
  format?: string;
}

type Method = (this: never, ...args: never[]) => unknown;

export interface Override {
  why: string;
  replace: (original: Method, provider: Provider, options: ProviderOptions) => Method;
}

/** oidc-provider accepts DPoP proofs this far in the future, so used proofs are stored longer than it requests. */
const proofAheadSeconds = 300;

function override<Original extends Method>(
  why: string,
  replace: (original: Original, provider: Provider, options: ProviderOptions) => Original,
): Override {
  return { why, replace: replace as unknown as Override['replace'] };
}

const opaqueForm = override<(this: ProviderToken) => string>(
  'opaque access tokens have a prefix and a checksum; the original also decides the format',
  (original) =>
    function () {
      const id = original.call(this);
      return this.format === 'opaque' ? newOpaqueToken() : id;
    },
);

/** By the path from the provider to the member. */
export const overrides: Readonly<Record<string, Override>> = {
  'Client.find': override<FindClient>(
    'clients come from our cache; the original finds metadata documents',
    (original, provider, options) =>
      createClientFinder(
        provider,
        options,
        createDocumentFinder((id) => original.call(provider.Client, id), options),
      ),
  ),
  'Client.prototype.compareClientSecret': override<(this: ProviderClient, presented: string) => boolean>(
    'only digests of secrets are stored',
    () =>
      function (presented) {
        return isSecretOf(this, presented);
      },
  ),
  'Client.prototype.grantTypeAllowed': override<(this: ProviderClient, type: string) => boolean>(
    'RFC 6749 section 5.2: unauthorized_client, not invalid_request',
    (original) =>
      function (type) {
        const isAllowed = original.call(this, type);
        const oidc = Provider.ctx?.oidc;
        const isRequested =
          (oidc?.route === 'token' && oidc.params?.grant_type === type) ||
          oidc?.route === 'device_authorization';
        if (!isAllowed && isRequested) {
          throw new errors.UnauthorizedClient('requested grant type is not allowed for this client');
        }
        return isAllowed;
      },
  ),
  'Client.prototype.responseTypeAllowed': override<(this: ProviderClient, type: string) => boolean>(
    'RFC 6749 section 4.1.2.1: unauthorized_client, not invalid_request',
    (original) =>
      function (type) {
        if (original.call(this, type)) return true;
        throw new errors.UnauthorizedClient('requested response_type is not allowed for this client');
      },
  ),
  'Client.prototype.redirectUriAllowed': override<(this: ProviderClient, uri: string) => boolean>(
    'RFC 8252 section 7.3: any port of loopback, also for web apps, but never a port of this server',
    (_original, provider) =>
      function (uri) {
        return isRedirectOf(this, uri, provider.issuer);
      },
  ),
  'Client.prototype.backchannelLogout': override<SendLogout>(
    'notices are stored and retried (logout/notifier.ts), which sends them by the original',
    (original, provider, { db, wakeLogouts }) => recordLogout(provider, original, db, wakeLogouts),
  ),
  'ClientKeys.add': override<AddKey>(
    'keys whose verification is expensive are ignored, and a fetched set has a maximum number of keys',
    addUsableKeys,
  ),
  'ClientKeys.clear': override<ClearKeys>('addUsableKeys counts the keys of a set', forgetKeys),
  'ClientKeys.refresh': override<RefreshKeys>(
    'requests that wait for the server of an app give their places back, and their shares count',
    (original, _provider, { outgoing }) => refreshElsewhere(original, outgoing),
  ),
  'ClientKeys.selectForVerify': override<SelectKeys>(
    'the original returns every key that matches, and all of them are tried',
    selectFewKeys,
  ),
  'Session.prototype.authTime': override<(this: ProviderSession) => number | undefined>(
    'zero if the application gave no time: then no id_token has auth_time, and every max_age requires a new sign-in',
    () =>
      function () {
        return this.loginTs || undefined;
      },
  ),
  'Session.prototype.persist': override<(this: ProviderSession) => Promise<string>>(
    'a rejected form of a browser without a session persists a session that was never saved, which throws',
    (original) =>
      async function () {
        return typeof this.exp === 'number' ? original.call(this) : '';
      },
  ),
  'Session.prototype.save': override<(this: ProviderSession, ttlSeconds: number) => Promise<string>>(
    'storage/session.ts replaces the id in place; deleting the row of the previous id would sign out',
    (original) =>
      function (ttlSeconds) {
        delete this.oldId;
        return original.call(this, ttlSeconds);
      },
  ),
  'AccessToken.prototype.generateTokenId': opaqueForm,
  'ClientCredentials.prototype.generateTokenId': opaqueForm,
  'RefreshToken.prototype.generateTokenId': override<() => string>(
    'a successor derives from its predecessor, so that a client whose response was lost gets it again',
    (_original, _provider, { secret }) => refreshTokenValues(secret),
  ),
  'ReplayDetection.unique': override<Provider['ReplayDetection']['unique']>(
    'one statement decides; the original reads and then writes',
    (_original, _provider, { db }) =>
      (issuer, jti, expiresAt) =>
        useProof(db, issuer, jti, expiresAt + proofAheadSeconds),
  ),
};

/** oidc-provider with these overrides, and with our response modes, which its constructor registers. */
export function createOverriddenProvider(options: ProviderOptions, configuration: Configuration): Provider {
  class OverriddenProvider extends Provider {
    override registerResponseMode(name: string, handler: ResponseMode): void {
      super.registerResponseMode(name, createResponseMode(name, handler, options));
    }
  }
  const provider = new OverriddenProvider(options.config.baseUrl, configuration);
  for (const [path, { replace }] of Object.entries(overrides)) {
    const { owner, name } = memberAt(provider, path);
    owner[name] = replace(owner[name] as Method, provider, options);
  }
  return provider;
}

/**
 * Finds the object that has the member at a path such as `Client.find`. `ClientKeys` is the prototype of the keys of all clients,
 * which oidc-provider does not export.
 */
export function memberAt(provider: Provider, path: string): { owner: Record<string, unknown>; name: string } {
  const names = path.split('.');
  const name = names.pop() as string;
  if (names[0] === 'ClientKeys') return { owner: clientKeysPrototype(provider), name };
  let owner = provider as unknown as Record<string, unknown>;
  for (const part of names) owner = owner[part] as Record<string, unknown>;
  return { owner, name };
}

function clientKeysPrototype({ Client }: Provider): Record<string, unknown> {
  const metadata = { client_id: 'keys', redirect_uris: [], grant_types: [], response_types: [] };
  // The types of oidc-provider have neither the constructor of a client nor its keys. A test compares digests of the members.
  const sample = new (
    Client as unknown as new (
      metadata: object,
      ctx: object,
    ) => { asymmetricKeyStore: object }
  )({ ...metadata, token_endpoint_auth_method: 'none' }, storedClient);
  return Object.getPrototypeOf(sample.asymmetricKeyStore) as Record<string, unknown>;
}
