/** Registers the protected resources of this server: the resource API, and the endpoint for agents. */

import type { FastifyInstance } from 'fastify';
import { returnOriginsOf } from './accounts/settings.ts';
import { registerAccountApi } from './api/accounts/accounts.ts';
import { registerAdministration } from './api/admin/admin.ts';
import { appsPart, registerApps } from './api/apps/apps.ts';
import { registerEvents } from './api/events/events.ts';
import { registerWebhooksApi, webhooksPart } from './api/webhooks/webhooks.ts';
import { createOperations, type ResourceOperation } from './collections/resource_operations.ts';
import { registerRoot } from './collections/root.ts';
import { registerCollections } from './collections/routes.ts';
import type { Config } from './config/config.ts';
import { createSealer } from './crypto/sealing.ts';
import type { Database } from './database/database.ts';
import type { GuardedFetch } from './egress/fetch.ts';
import { OriginTurns } from './egress/origin_turns.ts';
import type { FanOutWaker } from './events/fan_out_waker.ts';
import { guardBodies, limitGuard, showRateLimit } from './grants/limited_guard.ts';
import type { Guard } from './grants/principal.ts';
import type { ScopeCatalogue } from './grants/scopes.ts';
import { registerApi } from './http/api.ts';
import type { RateLimiter } from './http/rate_limit.ts';
import { type SlotLimits, StreamSlots } from './http/stream_slots.ts';
import { registerMcp } from './mcp/endpoint.ts';
import { AgentEvents } from './mcp/events/agent_events.ts';
import { apiLimits } from './mcp/tools/api_tool.ts';
import { managementTools } from './mcp/tools/management_tools.ts';
import type { Tool } from './mcp/tools/tool.ts';
import { collectTools, scopesOf } from './mcp/tools/tools.ts';
import type { Mailing } from './notices/mailing.ts';
import type { Authorization } from './oauth/authorization.ts';
import { mcpPath } from './oauth/protected_resource.ts';
import type { OAuthSettings } from './oauth/settings.ts';
import type { Platform } from './platform.ts';
import type { DeliveryKeyring } from './webhooks/sending/delivery_keyring.ts';
import { AgentCursors } from './webhooks/subscriptions/agent_cursor.ts';
import type { Webhooks } from './webhooks/webhooks.ts';

/** Tool calls in progress, so that slow tools of one app leave room for the others. An app gets 40 of those of an account (shared/share.ts). */
const toolCallLimits: SlotLimits = { token: 20, owner: 92, app: 200, node: 400 };

export interface ResourceParts {
  config: Config;
  platform: Platform;
  secret: Buffer;
  db: Database;
  /** Used to read the delivery log. */
  logDb: Database;
  waker: FanOutWaker;
  limiter: RateLimiter;
  /** Limits what accounts add to resources of others. */
  additions: RateLimiter;
  scopes: ScopeCatalogue;
  authorization: Authorization;
  webhooks: Webhooks;
  deliveryKeys: DeliveryKeyring;
  mailing: Mailing;
  /** For tools that call APIs elsewhere. */
  apiFetch: GuardedFetch;
  /** The node's metrics in Prometheus text format. */
  metrics: () => Promise<string>;
}

/** The settings of the authorization server, with the endpoint for agents among the resources that clients can ask for. */
export function withOwnResources({ oauth, mcp }: Platform, baseUrl: string): OAuthSettings {
  if (!mcp.enabled) return oauth;
  return { ...oauth, resources: [...oauth.resources, { url: baseUrl + mcpPath }] };
}

export function registerResources(app: FastifyInstance, parts: ResourceParts): void {
  const { db, waker, limiter, additions, platform, webhooks, authorization } = parts;
  const { onPublished } = webhooks;
  const operations = createOperations(
    { db, additions, wake: () => waker.wake(), onPublished },
    platform.collections,
  );
  const guard = limitGuard(authorization.guard, limiter);
  registerApi(app, (api) => {
    showRateLimit(api);
    guardBodies(api, guard);
    registerApiRoutes(api, parts, guard, operations);
  });
  if (platform.mcp.enabled) registerAgents(app, parts, operations);
}

/** Event streams are idle mostly: an agent may have many, one for each kind and arguments. */
const eventStreamLimits = { token: 20, owner: 100, app: 1_000, node: 2_000 };

function registerAgents(
  app: FastifyInstance,
  parts: ResourceParts,
  operations: readonly ResourceOperation[],
): void {
  const { config, platform, limiter, authorization, apiFetch } = parts;
  const { mcp, brand } = platform;
  const { exchangeToken } = authorization;
  const turns = new OriginTurns(apiLimits.connectionsMax);
  const derived = collectTools(operations, platform.tools, {
    exchangeToken,
    fetch: apiFetch,
    inTurn: (url, account, call) => turns.run(url, account, call),
  });
  const events = createEvents(app, parts);
  // A client asks for the scopes that it is told. Those of management are for apps that ask for them by name.
  const scopes = [...new Set([...scopesOf(derived), ...events.scopes])];
  const management = mcp.management ? managementOf(app, parts) : [];
  const tools = new Map([...derived, ...management.map((tool) => [tool.name, tool] as const)]);
  const guard = authorization.protect({ path: mcpPath, scopes, asksForScopes: true });
  registerMcp(app, {
    baseUrl: config.baseUrl,
    allowedOrigins: mcp.allowedOrigins,
    name: brand.name,
    guard: limitGuard(guard, limiter),
    tools,
    slots: new StreamSlots(app),
    calls: new StreamSlots(app, {
      limits: toolCallLimits,
      noun: 'tool calls in progress',
      areResumable: false,
    }),
    events,
    traces: authorization.traces,
  });
}

function createEvents(
  app: FastifyInstance,
  { db, secret, config, platform, webhooks, authorization }: ResourceParts,
): AgentEvents {
  const { appSubscriptions, allow } = platform.webhooks;
  const { catalogue, quotas, reader, watch, handshakes } = webhooks;
  return new AgentEvents({
    ...{ db, catalogue, reader, watch, handshakes, quotas, appSubscriptions, settings: platform.mcp.events },
    sealer: createSealer(secret, 'subscription-secret'),
    callbacks: { allowInsecure: config.insecureSubscribers, allow },
    cursors: new AgentCursors(secret),
    recover: () => webhooks.recover(),
    traces: authorization.traces,
    slots: new StreamSlots(app, { limits: eventStreamLimits, noun: 'event streams' }),
  });
}

/** Tools for the console's API, which they call in this process. */
function managementOf(app: FastifyInstance, { config, platform, authorization }: ResourceParts): Tool[] {
  const operations = [...appsPart.operations, ...webhooksPart(platform.eventKinds).operations];
  return managementTools(operations, {
    exchangeToken: (principal, scopes) =>
      authorization.exchangeToken(principal, { audience: config.baseUrl, scopes }),
    async call({ method, url, headers, body }) {
      const response = await app.inject({
        method: method as 'GET',
        url,
        headers,
        ...(body === undefined ? {} : { payload: body }),
      });
      return { status: response.statusCode, headers: response.headers, body: response.body };
    },
  });
}

/** Registers the resource API: collections, webhooks, apps, accounts and administration. */
function registerApiRoutes(
  api: FastifyInstance,
  parts: ResourceParts,
  guard: Guard,
  operations: readonly ResourceOperation[],
): void {
  const { config, platform, secret, db, scopes, authorization, webhooks, deliveryKeys, mailing } = parts;
  const route = { api, db, guard };
  const links = platform.collections.map(({ name, readScope, writeScope }) => ({
    name,
    href: `/${name}`,
    scopes: [readScope, writeScope],
  }));
  links.push(
    { name: 'subscriptions', href: '/subscriptions', scopes: ['read:webhooks', 'write:webhooks'] },
    { name: 'events', href: '/events', scopes: ['write:events'] },
    { name: 'accounts', href: '/accounts', scopes: ['read:accounts', 'write:accounts'] },
    { name: 'apps', href: '/apps', scopes: ['read:apps', 'write:apps'] },
  );
  registerRoot(api, guard, authorization.subjectOf, links, (principal) => webhooks.quotasOf(principal));
  registerCollections(api, guard, platform.collections, operations);
  const {
    onPublished,
    onErased,
    catalogue,
    quotas,
    presenter,
    reader,
    watch,
    handshakes,
    clientCertificate,
  } = webhooks;
  const { eventKinds: kinds, webhooks: settings } = platform;
  registerEvents(
    { ...route, catalogue, config, settings, deliveryKeys, clientCertificate, onPublished, onErased },
    kinds,
  );
  const { allow, appSubscriptions, headers: headerNames } = settings;
  registerWebhooksApi(
    {
      ...route,
      logDb: parts.logDb,
      catalogue,
      config,
      appSubscriptions,
      allow,
      quotas,
      headerNames,
      webhookId: platform.mcp.events.webhookId,
      presenter,
      reader,
      watch,
      handshakes,
      hasCertificate: clientCertificate !== null,
      sealer: createSealer(secret, 'subscription-secret'),
    },
    kinds,
    () => webhooks.recover(),
  );
  const { clients, checkMetadata } = authorization;
  const sealer = createSealer(secret, 'app-secret');
  registerApps({ ...route, settings: platform.apps, clients, checkMetadata, sealer, mailing });
  registerAccountApi({
    ...route,
    scopes,
    sealer: createSealer(secret, 'account-responses'),
    baseUrl: config.baseUrl,
    returnOrigins: returnOriginsOf(platform.accounts),
    signsInAdministrators: platform.accounts.login?.administrators === true,
  });
  const { oauth, webhooks: ofWebhooks, apps, accounts } = platform;
  const brand = { ...platform.brand, logo: platform.brand.logo?.type ?? null };
  const sections = { oauth, webhooks: ofWebhooks, apps, accounts, mcp: platform.mcp, brand };
  const events = { catalogue, onPublished };
  const { metrics } = parts;
  registerAdministration({ ...route, clients, events, config, platform: sections, metrics });
}
