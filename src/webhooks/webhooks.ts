/**
 * Composes the webhooks part of the server: its routes, its engine and the intake of events that were published by
 * SQL.
 */

import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { Config } from '../config/config.ts';
import { createSealer } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import type { ConnectorOptions } from '../egress/connector.ts';
import { isEventId } from '../events/batch.ts';
import { type Catalogue, createCatalogue } from '../events/catalogue.ts';
import { Intake } from '../events/intake.ts';
import { createIntakeMetrics } from '../events/intake_metrics.ts';
import type { EventKind } from '../events/kind.ts';
import type { Outbox } from '../events/outbox.ts';
import { registerPublishing } from '../events/publish.ts';
import type { StoredEvent } from '../events/store.ts';
import type { Guard, Principal } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import { registerAppSubscriptions } from './api/app_subscription_routes.ts';
import { registerDeliveries } from './api/delivery_routes.ts';
import { registerHealthRoutes } from './api/health_routes.ts';
import { registerRecoveries } from './api/recovery_routes.ts';
import { ownerOf, registerSubscriptions } from './api/subscription_routes.ts';
import { RemoteEngine } from './engine/engine_remote.ts';
import { kindArrays } from './fan_out/fan_out.ts';
import { takeNodeName } from './lanes/node_name.ts';
import { eraseEvent } from './log/retention.ts';
import { registerMeta } from './meta.ts';
import { recordAttemptSpan } from './sending/attempt_span.ts';
import type { DeliveryKeyring } from './sending/delivery_keyring.ts';
import type { WebhookSettings } from './settings.ts';
import { readQuotaUse, readResponseUse } from './subscriptions/subscription_quotas.ts';

export interface WebhooksOptions {
  /** Used by requests. */
  db: Database;
  /** Used by requests that read the delivery log. */
  logDb: Database;
  databaseUrl: string;
  /** Maximum database connections of the engine. */
  engineConnections: number;
  /** Whether the engine's thread returns the memory that its start needed. */
  collectsStartupGarbage: boolean;
  outbox: Outbox;
  /** Not started yet: the constructor adds listeners. */
  notifications: Notifications;
  /** Receives the metrics of this thread. */
  registry: Registry;
  config: Config;
  secret: Buffer;
  /** The platform's kinds. */
  kinds: readonly EventKind[];
  settings: WebhookSettings;
  /** Already started. */
  deliveryKeys: DeliveryKeyring;
  /** Overrides for connections to subscribers. */
  egress: Pick<ConnectorOptions, 'extraCa' | 'resolveHost' | 'proxy'>;
  guard: Guard;
  /** Notifications on a channel proved false. */
  onFalseHints: (channel: string, count: number) => void;
  /** In a thread of its own, or in this one. */
  enginePlace: 'thread' | 'here';
  logger: Logger;
}

export interface Webhooks {
  /** All kinds, including built-in ones. */
  readonly catalogue: Catalogue;
  /** Call it after each commit that has stored events, with those events. */
  onPublished(events: StoredEvent[]): void;
  registerRoutes(api: FastifyInstance): void;
  /** The remaining quotas of a token, for `GET /api`. Null if its scopes do not include webhooks. */
  quotasOf(principal: Principal): Promise<Record<string, { limit: number; left: number }> | null>;
  /** Which parts of the engine are working on this node, by their names in `/readyz`. */
  workers(): Promise<Readonly<Record<string, boolean>>>;
  /** The engine's metrics in Prometheus text format. */
  metrics(): Promise<string>;
  start(): Promise<void>;
  /** Stops after attempts in flight have finished. */
  stop(): Promise<void>;
}

export function createWebhooks(options: WebhooksOptions): Webhooks {
  const { db, outbox, config, secret, guard } = options;
  const catalogue: Catalogue = createCatalogue(options.kinds);
  const sealer = createSealer(secret, 'subscription-secret');
  const engine = createEngine(options, catalogue);
  outbox.onWake(() => engine.wake());
  const onPublished = (events: StoredEvent[]) => {
    engine.remember(events);
    outbox.wake();
  };

  const intake = createIntake(options, catalogue, onPublished);

  return {
    catalogue,
    onPublished,
    registerRoutes(api) {
      registerPublishing({
        app: api,
        db,
        guard,
        catalogue,
        onPublished,
      });
      const { appSubscriptions, quotas, headers: headerNames } = options.settings;
      const routes = { api, db, guard, catalogue, sealer, config, appSubscriptions, quotas, headerNames };
      registerSubscriptions(routes);
      registerAppSubscriptions(routes);
      const { logDb } = options;
      registerHealthRoutes({ ...routes, logDb });
      registerDeliveries({ api, db, logDb, guard, sealer, headerNames: options.settings.headers, catalogue });
      registerRecoveries({ api, db, guard, sealer, wake: () => engine.recover() });
      registerMeta(api, config, options.settings, options.deliveryKeys);
      api.delete<{ Params: { id: string } }>('/events/:id/body', async (request, reply) => {
        await guard(request, 'write:events');
        const { id } = request.params;
        const positions = isEventId(id) ? await eraseEvent(db, id) : [];
        if (positions.length === 0) throw new Problem(404, 'Event not found, or its body is already erased.');
        engine.forget(positions);
        return reply.code(204).send();
      });
    },
    async quotasOf(principal) {
      if (!principal.scopes.has('read:webhooks') && !principal.scopes.has('write:webhooks')) return null;
      const owner = ownerOf(principal, 'read');
      const { quotas } = options.settings;
      const uses = [...(await readQuotaUse(db, owner, quotas)), await readResponseUse(db, owner, quotas)];
      return Object.fromEntries(
        uses.map(({ name, limit, used }) => [name, { limit, left: Math.max(limit - used, 0) }]),
      );
    },
    async workers() {
      const { fanOut, sending } = await engine.state();
      return { fan_out: fanOut, sending, intake: intake.isUp };
    },
    metrics: () => engine.metrics(),
    async start() {
      await takeNodeName(db, config.nodeName);
      await engine.start();
      intake.start();
    },
    async stop() {
      await intake.stop();
      await engine.stop();
    },
  };
}

function createEngine(options: WebhooksOptions, catalogue: Catalogue): RemoteEngine {
  const { outbox, config, secret, logger } = options;
  // Built-in events are addressed to certain subscriptions, so they are not replayed.
  const declared = [...catalogue.kinds].filter(([, { isBuiltIn }]) => !isBuiltIn);
  return new RemoteEngine({
    settings: {
      databaseUrl: options.databaseUrl,
      connectionsMax: options.engineConnections,
      collectsStartupGarbage: options.collectsStartupGarbage,
      secret,
      egress: { ...options.egress, allowLoopback: config.insecureSubscribers },
      retryScheduleSeconds: config.retryScheduleSeconds,
      nodeName: config.nodeName,
      headerNames: options.settings.headers,
      quotas: options.settings.quotas,
      kinds: kindArrays(catalogue, options.settings.appSubscriptions),
      replayableKinds: kindArrays(
        { ...catalogue, kinds: new Map(declared) },
        options.settings.appSubscriptions,
      ),
    },
    place: options.enginePlace,
    onWarning: (fields, message) => logger.warn(fields, message),
    onError: (fields, message) => logger.error(fields, message),
    onWake: () => outbox.wake(),
    onLeadership: (leads) => outbox.setLeadership(leads),
    onSpan: recordAttemptSpan,
    onFalseHints: options.onFalseHints,
  });
}

function createIntake(
  options: WebhooksOptions,
  catalogue: Catalogue,
  onPublished: (events: StoredEvent[]) => void,
): Intake {
  const { db, logger } = options;
  const count = createIntakeMetrics(options.registry, db);
  return new Intake({
    db,
    notifications: options.notifications,
    catalogue,
    onPublished,
    onTaken(taken) {
      count(taken);
      const [first] = taken.rejected;
      if (first === undefined) return;
      const { row, rejection } = first;
      const fields = {
        count: taken.rejected.length,
        kind: row.kind,
        event: row.eventId,
        reason: rejection.reason,
      };
      logger.warn(fields, 'events published by SQL were rejected');
    },
    onError: (error) => logger.warn({ err: error }, 'events published by SQL could not be read'),
  });
}
