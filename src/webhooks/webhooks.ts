/**
 * The webhooks' part of the server: its routes and its worker, with what connects them.
 */

import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import type { Config } from '../config/config.ts';
import { createSealer } from '../crypto/sealing.ts';
import { type Database, openDatabase } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import { type Catalogue, createCatalogue } from '../events/catalogue.ts';
import { ensurePartitions } from '../events/event.ts';
import type { EventKind } from '../events/kind.ts';
import type { Outbox } from '../events/outbox.ts';
import { registerPublishing } from '../events/publish.ts';
import type { Guard } from '../grants/principal.ts';
import { defaultHeaderNames } from './delivery_request.ts';
import { registerDeliveries } from './delivery_routes.ts';
import { EventCache } from './event_cache.ts';
import { kindArrays } from './fan_out.ts';
import { registerMeta } from './meta.ts';
import { Sender } from './sender.ts';
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
  guard: Guard;
  logger: Logger;
}

export interface Webhooks {
  registerRoutes(api: FastifyInstance): void;
  /** To be called once the notifications have started. */
  start(): Promise<void>;
  /** Finishes what is under way. */
  stop(): Promise<void>;
}

/** Connections of the worker's own: requests must not keep it waiting, nor it them. */
const workerConnectionsMax = 6;
const partitionsPauseMs = 3_600_000;
const dayTables = ['events', 'deliveries', 'attempts'];

export function createWebhooks(options: WebhooksOptions): Webhooks {
  const { db, outbox, notifications, config, secret, guard, logger } = options;
  const catalogue: Catalogue = createCatalogue(options.kinds);
  const sealer = createSealer(secret, 'subscription-secret');
  const cache = new EventCache();
  const onError = (error: Error) => logger.warn({ err: error }, 'webhook worker');
  const workerDb = openDatabase({
    connectionString: withPlannerSettings(options.databaseUrl),
    connectionsMax: workerConnectionsMax,
    onIdleError: onError,
  });
  const sender = new Sender({ allowLoopback: config.insecureSubscribers });
  const worker = new Worker({
    db: workerDb,
    sender,
    sealer,
    cache,
    kinds: kindArrays(catalogue),
    headerNames: defaultHeaderNames,
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
  let timer: NodeJS.Timeout | undefined;

  return {
    registerRoutes(api) {
      registerPublishing({
        app: api,
        db,
        guard,
        catalogue,
        onPublished: (events) => {
          const createdAt = new Date().toISOString();
          for (const { position, id, kind, accountId, body } of events) {
            cache.put(position, { id, kind, accountId, body, createdAt });
          }
          outbox.wake();
        },
      });
      registerSubscriptions({ api, db, guard, catalogue, sealer, config });
      registerDeliveries({ api, db, guard });
      registerMeta(api, config);
    },
    async start() {
      await ensurePartitions(workerDb, dayTables);
      timer = setInterval(() => {
        ensurePartitions(workerDb, dayTables).catch(onError);
      }, partitionsPauseMs);
      await worker.start();
    },
    async stop() {
      clearInterval(timer);
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
function withPlannerSettings(connectionString: string): string {
  const url = new URL(connectionString);
  const given = url.searchParams.get('options') ?? '';
  url.searchParams.set('options', `${given} -c enable_seqscan=off -c jit=off`.trim());
  return url.href;
}
