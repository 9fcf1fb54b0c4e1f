/**
 * The webhooks' part of the server: its routes and its worker, with what connects them.
 */

import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { Config } from '../config/config.ts';
import { createSealer } from '../crypto/sealing.ts';
import { type Database, openDatabase } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import type { ConnectorOptions } from '../egress/connector.ts';
import { type Catalogue, createCatalogue } from '../events/catalogue.ts';
import type { EventKind } from '../events/kind.ts';
import type { Outbox } from '../events/outbox.ts';
import { isEventId, registerPublishing } from '../events/publish.ts';
import type { Guard } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import type { DeliveryKeyring } from './delivery_keyring.ts';
import { registerDeliveries } from './delivery_routes.ts';
import { EventCache } from './event_cache.ts';
import { disableFailing, warnFailing } from './failing.ts';
import { kindArrays } from './fan_out.ts';
import { registerMeta } from './meta.ts';
import { createWorkerMetrics } from './metrics.ts';
import { stepRecovery } from './recovery.ts';
import { registerRecoveries } from './recovery_routes.ts';
import { eraseEvent, keepDays } from './retention.ts';
import { Sender } from './sender.ts';
import type { WebhookSettings } from './settings.ts';
import { registerSubscriptions } from './subscription_routes.ts';
import { disableByWorker } from './subscription_state.ts';
import { Worker } from './worker.ts';

export interface WebhooksOptions {
  /** For requests. */
  db: Database;
  databaseUrl: string;
  /** Not started yet. */
  notifications: Notifications;
  outbox: Outbox;
  config: Config;
  secret: Buffer;
  /** Those of the platform. */
  kinds: readonly EventKind[];
  settings: WebhookSettings;
  /** Started. */
  deliveryKeys: DeliveryKeyring;
  /** How subscribers are connected to, where that is not as usual. */
  egress: Pick<ConnectorOptions, 'extraCa' | 'resolveHost' | 'proxy'>;
  guard: Guard;
  registry: Registry;
  logger: Logger;
}

export interface Webhooks {
  registerRoutes(api: FastifyInstance): void;
  /** Which parts of the worker run on this node, by the names that `/readyz` gives them. */
  readonly workers: Readonly<Record<string, boolean>>;
  /** To be called once the notifications have started. */
  start(): Promise<void>;
  /** Finishes what is under way. */
  stop(): Promise<void>;
}

/** Connections of the worker's own: requests must not keep it waiting, nor it them. */
const workerConnectionsMax = 6;
const partitionsPauseMs = 3_600_000;
/** Milliseconds between looks for subscriptions whose owners are to be warned. */
const warnPauseMs = 600_000;
/** Milliseconds between looks for recoveries that nobody asked for. */
const recoveryPauseMs = 5_000;

export function createWebhooks(options: WebhooksOptions): Webhooks {
  const { db, outbox, notifications, config, secret, guard, logger } = options;
  const catalogue: Catalogue = createCatalogue(options.kinds);
  const sealer = createSealer(secret, 'subscription-secret');
  const cache = new EventCache();
  const onError = (error: Error) => logger.warn({ err: error }, 'webhook worker');
  const workerDb = openDatabase({
    connectionString: withSessionSettings(options.databaseUrl),
    connectionsMax: workerConnectionsMax,
    onIdleError: onError,
  });
  const sender = new Sender({ ...options.egress, allowLoopback: config.insecureSubscribers });
  const metrics = createWorkerMetrics(options.registry, db, () => worker.status);
  const worker: Worker = new Worker({
    metrics,
    onFailing: (lanes) => {
      disableFailing(workerDb, lanes).then((disabled) => {
        for (const _lane of disabled) metrics.failing('disabled');
        if (disabled.length > 0) outbox.wake();
      }, onError);
    },
    db: workerDb,
    sender,
    sealer,
    cache,
    kinds: kindArrays(catalogue),
    headerNames: options.settings.headers,
    signers: (now) => options.deliveryKeys.signers(now),
    retryScheduleSeconds: config.retryScheduleSeconds,
    onGone: (lane) => {
      disableByWorker(workerDb, lane, 'gone').then(() => outbox.wake(), onError);
    },
    onError,
  });
  outbox.onWake(() => worker.wake());
  notifications.listen('nuncio_lane_changed', {
    onNotification: (payload) => {
      if (payload.startsWith('client:')) worker.reviewAll(payload.slice('client:'.length));
      else worker.review(Number(payload));
    },
    // Whatever changed meanwhile was not heard.
    onListening: () => worker.reviewAll(),
  });
  notifications.listen('nuncio_event_erased', {
    onNotification: (positions) => {
      for (const position of positions.split(',')) cache.drop(Number(position));
      worker.reviewAll();
    },
  });
  const timers: NodeJS.Timeout[] = [];
  let recovering: Promise<void> | undefined;
  let isStopping = false;
  // What the server itself tells is for those whom it was told, not for who asks later.
  const declared = [...catalogue.kinds].filter(([, { isBuiltIn }]) => !isBuiltIn);
  const replayable = kindArrays({ ...catalogue, kinds: new Map(declared) });
  const recover = () => {
    recovering ??= (async () => {
      try {
        while (!isStopping && (await stepRecovery(workerDb, replayable)));
      } catch (error) {
        onError(error as Error);
      } finally {
        recovering = undefined;
      }
    })();
  };

  const warn = async () => {
    const warnings = await warnFailing(workerDb);
    for (const { subscription, warning, failingSince, disablesAt } of warnings) {
      metrics.failing(warning);
      logger.warn(
        { subscription, warning, failing_since: failingSince, disables_at: disablesAt },
        'subscription will be disabled: none of its deliveries succeeds',
      );
    }
    if (warnings.length > 0) outbox.wake();
  };

  return {
    registerRoutes(api) {
      registerPublishing({
        app: api,
        db,
        guard,
        catalogue,
        onPublished: (events) => {
          for (const { position, id, kind, accountId, body, createdAt, traceparent } of events) {
            cache.put(position, { id, kind, accountId, body, createdAt: createdAt.getTime(), traceparent });
          }
          outbox.wake();
        },
      });
      registerSubscriptions({ api, db, guard, catalogue, sealer, config });
      registerDeliveries({ api, db, guard, sealer });
      registerRecoveries({ api, db, guard, sealer, wake: recover });
      registerMeta(api, config, options.settings, options.deliveryKeys);
      api.delete<{ Params: { id: string } }>('/events/:id/body', async (request, reply) => {
        await guard(request, 'write:events');
        const { id } = request.params;
        const positions = isEventId(id) ? await eraseEvent(db, id) : [];
        if (positions.length === 0)
          throw new Problem(404, 'There is no such event, or its body is erased already.');
        for (const position of positions) cache.drop(position);
        return reply.code(204).send();
      });
    },
    get workers() {
      const { fanOut, sending } = worker.isUp;
      return { fan_out: fanOut, sending };
    },
    async start() {
      await keepDays(workerDb);
      timers.push(
        setInterval(() => {
          keepDays(workerDb).catch(onError);
        }, partitionsPauseMs),
        setInterval(recover, recoveryPauseMs),
        setInterval(() => void warn().catch(onError), warnPauseMs),
      );
      await worker.start();
      // Not waited for: it reads every lane.
      void warn().catch(onError);
    },
    async stop() {
      isStopping = true;
      for (const timer of timers) clearInterval(timer);
      await recovering;
      await worker.stop();
      await sender.close();
      await workerDb.destroy();
    },
  };
}

/**
 * The worker's statements look rows up by keys in tables that grow from nothing to millions of rows between two
 * visits of the statistics collector. A plan made while they were empty must not read them from end to end later.
 */
const plannerSettings = '-c enable_seqscan=off -c jit=off';

/**
 * A node that stands still (its machine is paused, or gone from the network) holds the fan-out's lock for as long as
 * its session lives. The loop asks something every second; the pool closes connections that idle for 30 s itself.
 */
const idleSettings = '-c idle_session_timeout=45s -c idle_in_transaction_session_timeout=45s';
const sessionSettings = `${plannerSettings} ${idleSettings}`;

function withSessionSettings(connectionString: string): string {
  const url = new URL(connectionString);
  const given = url.searchParams.get('options') ?? '';
  url.searchParams.set('options', `${given} ${sessionSettings}`.trim());
  return url.href;
}
