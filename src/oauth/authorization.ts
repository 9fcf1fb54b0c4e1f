/**
 * The public face of this room: registers the authorization server's routes, and returns the guard for protected
 * resources.
 */

import assert from 'node:assert/strict';
import type { FastifyInstance } from 'fastify';
import type { JWK } from 'jose';
import type { Provider } from 'oidc-provider';
import type { Logger } from 'pino';
import type { AccountSettings } from '../accounts/settings.ts';
import type { CheckMetadata } from '../apps/metadata.ts';
import type { AppSettings } from '../apps/settings.ts';
import { AuditLog } from '../audit/audit_log.ts';
import { ClientCache } from '../clients/client_cache.ts';
import type { Config } from '../config/config.ts';
import { ConnectionTraces } from '../connections/traces.ts';
import { deriveKey } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import type { ConnectorOptions } from '../egress/connector.ts';
import { createGuardedFetch } from '../egress/fetch.ts';
import { GrantUse } from '../grants/grant_use.ts';
import type { Guard } from '../grants/principal.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { WithdrawalList } from '../grants/withdrawals.ts';
import type { RateLimiter } from '../http/rate_limit.ts';
import { type AccessTokenClaims, AccessTokenVerifier } from './access_token.ts';
import { registerAuthorizeForm } from './authorize_form.ts';
import { reportConnections, watchDiscovery } from './connection_steps.ts';
import { registerCors } from './cors.ts';
import { createProofChecker } from './dpop.ts';
import { createGuard } from './guard.ts';
import { startHousekeeping } from './housekeeping.ts';
import { createInteractionSubmitter, type SubmitInteraction } from './interaction_binding.ts';
import { Keyring } from './keyring.ts';
import { KnownNetworks } from './known_networks.ts';
import { createLoginSessions, type LoginSessions } from './login_session.ts';
import { LogoutNotifier } from './logout/notifier.ts';
import { mountProvider } from './mount.ts';
import { openCertificateReader } from './mtls/mtls.ts';
import { OutgoingRequests } from './outgoing_requests.ts';
import { createSubjects, type SubjectOf } from './pairwise.ts';
import { type ProtectedResource, registerProtectedResource } from './protected_resource.ts';
import { logProtocol } from './protocol_log.ts';
import { createProvider } from './provider.ts';
import type { ProviderPages } from './provider_options.ts';
import { createMetadataCheck } from './registration/account_app.ts';
import { createRequestLimit } from './request_limit.ts';
import type { OAuthSettings } from './settings.ts';
import { ensureSigningKeys, type SigningKeys } from './signing_keys.ts';
import { opaqueTokenLookup } from './storage/access_token.ts';
import { createTokenExchange, type ExchangeToken } from './token_exchange.ts';

export interface AuthorizationOptions {
  app: FastifyInstance;
  db: Database;
  /** Not started yet: listeners are added here. */
  notifications: Notifications;
  config: Config;
  secret: Buffer;
  scopes: ScopeCatalogue;
  logger: Logger;
  pages: ProviderPages;
  /** Limits requests by address. */
  limiter: RateLimiter;
  /** Public keys of other rooms, published in the JWKS. They verify no tokens. */
  foreignKeys: () => readonly JWK[];
  /** Overrides for outgoing connections. */
  egress?: Pick<ConnectorOptions, 'extraCa' | 'resolveHost' | 'proxy'>;
  settings: OAuthSettings;
  apps: AppSettings;
  /** Where users sign in; null for Nuncio's own login page. */
  login: AccountSettings['login'];
}

export interface Authorization {
  /** The guard of the resource API. */
  guard: Guard;
  /** Publishes the metadata of another resource of this server, and returns its guard. */
  protect: (resource: ProtectedResource) => Guard;
  /** Makes tokens with which the server calls an API in the name of its caller. */
  exchangeToken: ExchangeToken;
  subjectOf: SubjectOf;
  clients: ClientCache;
  /** Validates the metadata of apps that accounts create. */
  checkMetadata: CheckMetadata;
  /** The claims of an access token that was verified before. They say who sent it, and not that it is still valid. */
  claimsOf: (token: string) => Pick<AccessTokenClaims, 'accountId' | 'creatorId' | 'clientId'> | undefined;
  /** Returns the current provider; used by the pages. */
  provider: () => Provider;
  loginSessions: LoginSessions;
  /** Where the pages report steps of connections. */
  traces: ConnectionTraces;
  submitInteraction: SubmitInteraction;
  /** Flushes the audit log and stops all timers. */
  stop: () => Promise<void>;
}

/** @throws ConfigError if the settings for mutual TLS are incomplete */
export async function createAuthorization(options: AuthorizationOptions): Promise<Authorization> {
  const { app, db, notifications, config, secret, scopes, settings, logger } = options;
  await ensureSigningKeys(db, secret);
  const clients = new ClientCache(db, notifications);
  const withdrawals = new WithdrawalList(db, notifications);
  const audit = new AuditLog(db, (error, lost) => logger.error({ err: error, lost }, 'audit entries lost'));
  const use = new GrantUse(db, (error) => logger.warn({ err: error }, 'cannot write when grants were used'));
  const traces = openTraces(options);
  const verifier = createVerifier(options, clients, () => keyring.refresh());
  const readCertificate = openCertificateReader(settings, config);
  // Strangers choose the hosts, whose handshakes must not delay requests of others.
  const guarded = createGuardedFetch({ ...options.egress, allowLoopback: config.insecureSubscribers });
  const outgoing = new OutgoingRequests(guarded.fetch);
  const knownNetworks = new KnownNetworks();
  let provider: Provider | undefined;
  let signingKeys: SigningKeys = { privateKeys: [], publicKeys: [] };
  const keyring = new Keyring({
    db,
    notifications,
    secret,
    onChange: (keys) => {
      signingKeys = keys;
      verifier.useKeys(keys.publicKeys);
      provider = createProvider({
        ...options,
        knownNetworks,
        outgoing,
        readCertificate,
        keys,
        clients,
        verifier,
        traces,
        wakeLogouts: () => logouts.wake(),
      });
      logProtocol(provider, logger, audit, use);
      reportConnections(provider, traces);
    },
    onError: (error) => logger.error({ err: error }, 'cannot load the signing keys'),
  });
  await keyring.start();
  warnOfDeprecated(options);
  const currentProvider = () => {
    assert(provider !== undefined);
    return provider;
  };
  const logouts = new LogoutNotifier(db, currentProvider, logger);
  logouts.start();
  registerCors(app);
  registerAuthorizeForm(app);
  const rejectIfLimited = createRequestLimit({ ...options, traces, clients });
  mountProvider(app, config.baseUrl, currentProvider, settings, rejectIfLimited, options.pages);
  const onError = (error: unknown) => logger.warn({ err: error }, 'housekeeping failed');
  const stopHousekeeping = startHousekeeping(db, onError);
  const proofs = createProofChecker(db, secret, settings.dpopNonce);
  const protect = (resource: ProtectedResource) => {
    registerProtectedResource(app, config.baseUrl, resource, options.pages.brandName);
    return createGuard({
      baseUrl: config.baseUrl,
      resource,
      verifier,
      withdrawals,
      proofs,
      traces,
      certificateThumbprint: (request) => readCertificate(request.raw)?.thumbprint ?? null,
    });
  };
  const offered = [...scopes.values()].filter(({ isForUsers }) => isForUsers).map(({ name }) => name);
  return {
    guard: protect({ path: '', scopes: offered, asksForScopes: false }),
    protect,
    exchangeToken: createTokenExchange(config.baseUrl, settings, () => signingKeys),
    subjectOf: createSubjects(secret, clients, currentProvider),
    clients,
    checkMetadata: createMetadataCheck(currentProvider, scopes),
    claimsOf: (token) => verifier.peek(token),
    provider: currentProvider,
    loginSessions: createLoginSessions(config.baseUrl, currentProvider),
    traces,
    submitInteraction: createInteractionSubmitter(config.baseUrl, currentProvider),
    async stop() {
      keyring.stop();
      await stopHousekeeping();
      await logouts.stop();
      await traces.stop();
      await audit.stop();
      await use.stop();
      await guarded.close();
    },
  };
}

function createVerifier(
  { config, db }: AuthorizationOptions,
  clients: ClientCache,
  refreshKeys: () => Promise<void>,
): AccessTokenVerifier {
  return new AccessTokenVerifier({
    issuer: config.baseUrl,
    lookUp: opaqueTokenLookup(db),
    refreshKeys,
    creatorOf: async (id) => (await clients.findIncludingSuspended(id))?.creatorId,
  });
}

function openTraces({ app, db, secret, logger }: AuthorizationOptions): ConnectionTraces {
  const traces = new ConnectionTraces({
    db,
    key: deriveKey(secret, 'connections'),
    onError: (error, lost) => logger.warn({ err: error, lost }, 'steps of connections lost'),
  });
  watchDiscovery(app, traces);
  return traces;
}

function warnOfDeprecated({ settings, logger }: AuthorizationOptions): void {
  for (const name of ['withoutPkce', 'implicit', 'password'] as const) {
    if (settings[name]) logger.warn(`oauth.${name} is on: deprecated by RFC 9700 and removed in OAuth 2.1`);
  }
}
