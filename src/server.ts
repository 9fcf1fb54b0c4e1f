/**
 * The composition root: creates all parts in order and passes each its dependencies.
 */

// Must come before any import of oidc-provider.
import './oauth/runtime_warning.ts';

import type { Server as HttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { readUpstreamSecrets, type UpstreamSecrets } from './accounts/upstream/provider_settings.ts';
import { createUpstreamClient } from './accounts/upstream/upstream_client.ts';
import type { Config } from './config/config.ts';
import { divideConnections, findConnectionShortage } from './database/connections.ts';
import { type Database, openDatabase } from './database/database.ts';
import { enterEpoch } from './database/epoch.ts';
import { Notifications } from './database/notifications.ts';
import { storeRetention } from './database/retention.ts';
import type { ConnectorOptions } from './egress/connector.ts';
import { createNamedFetch } from './egress/named_fetch.ts';
import { readEgressProxy } from './egress/proxy.ts';
import { FanOutWaker } from './events/fan_out_waker.ts';
import { collectAtRest } from './garbage_collection.ts';
import { createScopeCatalogue } from './grants/scopes.ts';
import { closeApplication, createApplication, headersOf } from './http/application.ts';
import { Closing } from './http/closing.ts';
import { registerHealth } from './http/health.ts';
import { startIdempotencySweep } from './http/idempotency.ts';
import { listen } from './http/listening.ts';
import { countFalseHints, countRequests, createRegistry, registerMetrics } from './http/metrics.ts';
import { metricsAccess } from './http/metrics_access.ts';
import { callerOfToken } from './http/overload/caller.ts';
import { limitConnections } from './http/overload/connection_limit.ts';
import { limitLoad } from './http/overload/overload.ts';
import { RateLimiter } from './http/rate_limit.ts';
import { tlsOptions, watchTls } from './http/tls.ts';
import { registerTracing } from './http/tracing.ts';
import { EventErrors } from './mcp/events/errors.ts';
import { apiLimits } from './mcp/tools/api_tool.ts';
import { createMailing } from './notices/mailing.ts';
import { type Authorization, createAuthorization } from './oauth/authorization.ts';
import type { Platform } from './platform.ts';
import { referenceParts } from './reference_parts.ts';
import { registerResources, withOwnResources } from './resources.ts';
import { mailBrand } from './web/brand_colors.ts';
import { registerConsole } from './web/console.ts';
import { ensureOwnClients } from './web/own_clients.ts';
import { registerPages, showProblem } from './web/pages.ts';
import { createProviderPages } from './web/provider_pages.ts';
import { registerReference } from './web/reference/page.ts';
import type { Tour } from './web/start_page.ts';
import { callbackPath } from './web/upstream/upstream_flow.ts';
import { DeliveryKeyring } from './webhooks/sending/delivery_keyring.ts';
import { createWebhooks } from './webhooks/webhooks.ts';

export interface ServerOptions {
  config: Config;
  /** The operator's configuration. */
  platform: Platform;
  /** Connection string of the external or embedded database. Its schema must be up to date. */
  databaseUrl: string;
  /** The deployment's key material (config/secret.ts). */
  secret: Buffer;
  logger: Logger;
  /** Client secrets of the upstream providers; by default those of the environment. */
  upstreamSecrets?: UpstreamSecrets;
  /** Overrides for outgoing connections, for tests and private installations. */
  egress?: Pick<ConnectorOptions, 'extraCa' | 'resolveHost'>;
  /** Runs the delivery engine in a thread (default) or in this one (`here`). */
  enginePlace?: 'thread' | 'here';
  /** Content of the start page in development mode. */
  tour?: Tour;
  /** Whether to return memory when the server rests. Blocks its threads for some 100 ms. Default: false. */
  collectsGarbage?: boolean;
}

type Egress = Pick<ConnectorOptions, 'extraCa' | 'resolveHost' | 'proxy'>;

export interface RunningServer {
  /** The URL it listens on, for example `http://127.0.0.1:3000`. */
  address: string;
  /** Drains requests and deliveries in flight, then closes all resources. */
  close(): Promise<void>;
  /** What `close` waits for; null if it waits for nothing. */
  readonly waitingFor: string | null;
}

/**
 * Longest wait of a transaction for one lock. The request then fails and its connection serves others. Longer than statements of a migration wait, behind
 * which requests wait, and than PostgreSQL takes to find a deadlock; shorter than requests wait for a connection.
 */
const lockTimeoutMs = 3_000;

/** Timeouts for queries of the delivery log: for one statement, and for a free connection. */
const logTimeouts = { statementTimeoutMs: 10_000, connectionTimeoutMs: 3_000, isByTime: true };

/**
 * Starts the server.
 * @throws the system's error if the port is in use; all resources are closed then
 */
export async function startServer(options: ServerOptions): Promise<RunningServer> {
  // Resources close in reverse order of opening, also when start-up fails.
  const opened = new Closing();
  try {
    const address = await openServer(options, opened);
    return {
      address,
      close: () => opened.close(),
      get waitingFor() {
        return opened.waitingFor;
      },
    };
  } catch (error) {
    await opened.close();
    throw error;
  }
}

/** The part of the connections through the egress proxy that deliveries may have. The others are for apps' documents and tools. */
const proxyPartOfDeliveries = 3 / 4;

function proxyOf({ egressProxy, egressProxyConnections }: Config, part: number): Pick<Egress, 'proxy'> {
  if (egressProxy === null) return {};
  return { proxy: readEgressProxy(egressProxy, Math.floor(part * egressProxyConnections)) };
}

// biome-ignore lint/complexity/noExcessiveLinesPerFunction: a list of resources in the order of their opening
async function openServer(options: ServerOptions, opened: Closing): Promise<string> {
  const { config, platform, databaseUrl, secret, logger } = options;
  const upstreamSecrets = options.upstreamSecrets ?? readUpstreamSecrets(platform.accounts.upstream);
  const shares = divideConnections(config.databaseConnections);
  const registry = createRegistry();
  const onFalseHints = countFalseHints(registry);
  const { db, logDb, notifications, waker } = openDatabases(options, shares, onFalseHints, opened);
  const app = openApplication(options, opened);
  // Used for metadata of apps, logout notices and deliveries.
  const egress: Egress = {
    ...options.egress,
    ...proxyOf(config, 1 - proxyPartOfDeliveries),
  };
  // Set when the authorization server exists, before which no request arrives.
  let claimsOf: Authorization['claimsOf'] = () => undefined;
  opened.defer(
    'limits of load',
    limitServerLoad(app, options, db, registry, (token) => claimsOf(token)),
  );
  registerTracing(app);
  const requestsServed = countRequests(app, registry, db);
  const metricsApp = openMetricsApplication(options, app, opened);
  const metrics = async () => (await Promise.all([registry.metrics(), webhooks.metrics()])).join('\n');
  registerMetrics(metricsApp, registry.contentType, metrics, metricsAccess(config));
  const scopes = createScopeCatalogue(platform.objects);
  const deliveryKeys = new DeliveryKeyring({
    db,
    notifications,
    secret,
    onError: (error) => logger.error({ err: error }, 'cannot load the delivery keys'),
  });
  await deliveryKeys.start();
  opened.defer('delivery keys', () => deliveryKeys.stop());
  const limiter = new RateLimiter(db, config.rateLimitPerMinute);
  limiter.start();
  opened.defer('rate limits', () => limiter.stop());
  // Each sub-collection multiplies the limit with its own.
  const additions = new RateLimiter(db, Math.min(config.rateLimitPerMinute, 1));
  additions.start();
  opened.defer('limits of additions', () => additions.stop());
  const authorization = await createAuthorization({
    app,
    db,
    notifications,
    config,
    secret,
    scopes,
    logger,
    pages: createProviderPages(platform.brand),
    limiter,
    foreignKeys: () => deliveryKeys.published.map(({ publicJwk }) => publicJwk),
    settings: withOwnResources(platform, config.baseUrl),
    apps: platform.apps,
    login: platform.accounts.login,
    egress,
  });
  claimsOf = authorization.claimsOf;
  opened.defer('authorization server', () => authorization.stop());
  registerConsole(app, config.baseUrl);
  const upstreamClients = platform.accounts.upstream.map((provider) =>
    createUpstreamClient({
      db,
      provider,
      clientSecret: upstreamSecrets.get(provider.id) ?? '',
      redirectUri: config.baseUrl + callbackPath(provider.id),
      egress,
    }),
  );
  for (const client of upstreamClients) opened.defer('upstream providers', () => client.close());
  const { resources } = platform.oauth;
  const mailing = createMailing({ db, config, secret, brand: mailBrand(platform.brand), logger, registry });
  registerPages(app, {
    ...authorization,
    db,
    scopes,
    secret,
    baseUrl: config.baseUrl,
    eventRules: { kinds: platform.eventKinds, appSubscriptions: platform.webhooks.appSubscriptions },
    resources,
    startUrl: platform.startUrl,
    login: platform.accounts.login,
    upstreamClients,
    registration: platform.accounts.registration,
    limiter,
    tour: options.tour ?? null,
    mailing,
    trustProxy: config.trustProxy,
  });
  opened.defer('mail', () => mailing.stop());
  opened.defer(
    'housekeeping',
    startIdempotencySweep(db, (error) =>
      logger.warn({ err: error }, 'cannot delete expired idempotency keys'),
    ),
  );
  const errors = new EventErrors(platform.mcp.events.firstErrorCode);
  const webhooks = createWebhooks({
    db,
    logDb,
    signers: (now) => deliveryKeys.signers(now),
    databaseUrl,
    engineConnections: shares.engine,
    collectsGarbage: options.collectsGarbage ?? false,
    waker,
    notifications,
    registry,
    config,
    secret,
    kinds: platform.eventKinds,
    settings: platform.webhooks,
    agents: {
      codeOf: { Forbidden: errors.codeOf('Forbidden'), NotFound: errors.codeOf('NotFound') },
      webhookId: platform.mcp.events.webhookId,
    },
    conversions: platform.conversions,
    egress,
    engineProxy: proxyOf(config, proxyPartOfDeliveries),
    onFalseHints,
    // Functions cannot be passed to a thread.
    enginePlace: options.enginePlace ?? (egress.resolveHost === undefined ? 'thread' : 'here'),
    logger,
  });
  opened.defer('deliveries', () => webhooks.stop());
  if (options.collectsGarbage) {
    opened.defer('garbage collection', collectAtRest({ workDone: requestsServed }));
  }
  registerHealth(app, db, () => webhooks.workers());
  const apis = createNamedFetch(
    {
      ...egress,
      allowLoopback: config.insecureSubscribers,
      allow: platform.webhooks.allow,
    },
    apiLimits,
  );
  opened.defer('calls of tools', () => apis.close());
  registerResources(app, {
    config,
    platform,
    secret,
    db,
    logDb,
    waker,
    limiter,
    additions,
    scopes,
    authorization,
    webhooks,
    deliveryKeys,
    mailing,
    apiFetch: apis.fetch,
    metrics,
  });

  const offered = scopes.values().filter(({ isForUsers }) => isForUsers);
  await storeRetention(db, platform.retention);
  await ensureOwnClients(db, config.baseUrl, offered.map(({ name }) => name).toArray());
  registerReference(app, {
    name: platform.brand.name,
    baseUrl: config.baseUrl,
    parts: referenceParts(platform),
    kinds: platform.eventKinds,
    scopes: scopes.values().toArray(),
  });

  const shortage = await findConnectionShortage(db, config.databaseConnections);
  if (shortage !== undefined) logger.warn(shortage);
  await notifications.start();
  await webhooks.start();
  mailing.start();
  if (config.metricsPort !== null) await metricsApp.listen({ port: config.metricsPort, host: config.host });
  await listen(app, config.host, config.port);
  const { port, address, family } = app.server.address() as AddressInfo;
  return `${config.tls === null ? 'http' : 'https'}://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
}

/** Opens the connection pools and the parts that only need the database. */
function openDatabases(
  { databaseUrl, logger }: ServerOptions,
  shares: ReturnType<typeof divideConnections>,
  onFalseHints: (channel: string, count: number) => void,
  opened: Closing,
) {
  const onDatabaseError = (error: Error) => logger.warn({ err: error }, 'database connection lost');
  const shared = { connectionString: databaseUrl, onIdleError: onDatabaseError };
  let epoch: string | undefined;
  const db = openDatabase({
    ...shared,
    lockTimeoutMs,
    connectionsMax: shares.requests,
    onConnect: async (client) => {
      const entered = await enterEpoch(client);
      // State that is kept up to date by notifications must be loaded again.
      if (epoch !== undefined && entered !== epoch) notifications.reconnect();
      epoch = entered;
    },
  });
  opened.defer('database connections', () => db.destroy());
  const logDb = openDatabase({ ...shared, ...logTimeouts, connectionsMax: shares.log });
  opened.defer('database connections of the log', () => logDb.destroy());
  const notifications = new Notifications(databaseUrl, onDatabaseError, onFalseHints);
  opened.defer('notifications', () => notifications.stop());
  const waker = new FanOutWaker(db, notifications);
  opened.defer('fan-out waker', () => waker.stop());
  return { db, logDb, notifications, waker };
}

/** Creates the Fastify application, with TLS if it is configured. */
function openApplication({ config, platform, logger }: ServerOptions, opened: Closing) {
  const asksForCertificates = platform.oauth.mtls === 'direct';
  const tls = config.tls === null ? null : tlsOptions(config.tls, asksForCertificates);
  const app = createApplication(config, logger, tls, showProblem);
  app.decorate('brand', platform.brand);
  opened.defer('HTTP requests', () => closeApplication(app));
  if (config.tls !== null) {
    const onReload = (error?: unknown) => {
      if (error === undefined) logger.info('TLS certificate reloaded');
      else logger.error({ err: error }, 'cannot load the TLS certificate, keeping the previous one');
    };
    // With TLS options Fastify creates an HTTPS server, although its type is that of HTTP.
    opened.defer(
      'TLS certificate',
      watchTls(app.server as unknown as HttpsServer, config.tls, asksForCertificates, onReload),
    );
  }
  return app;
}

/** Limits connections and requests. @param claimsOf the claims of a token that was verified before @returns stops the timers */
function limitServerLoad(
  app: FastifyInstance,
  { config, logger }: ServerOptions,
  db: Database,
  registry: Registry,
  claimsOf: Authorization['claimsOf'],
): () => void {
  limitConnections(app, {
    registry,
    connectionsMax: config.clientConnections,
    trustProxy: config.trustProxy,
    page: showProblem,
  });
  return limitLoad(app, {
    db,
    registry,
    logger,
    requestsMax: config.concurrentRequests,
    trustProxy: config.trustProxy,
    page: showProblem,
    headers: Object.entries(headersOf(config)).flat(),
    identify(token) {
      const claims = claimsOf(token);
      return claims && callerOfToken(claims);
    },
  });
}

/** Creates the application that serves the metrics: plain HTTP on a port of its own, or the server's application. */
function openMetricsApplication({ config, logger }: ServerOptions, app: FastifyInstance, opened: Closing) {
  if (config.metricsPort === null) return app;
  const metricsApp = createApplication(config, logger);
  opened.defer('metrics', () => closeApplication(metricsApp));
  return metricsApp;
}
