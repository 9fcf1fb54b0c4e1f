/**
 * Composes the webhooks part of the server: its routes, its engine and the intake of events that were published by
 * SQL.
 */

import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { Config } from '../config/config.ts';
import { createSealer } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import {
  type OwnCertificate,
  type PublishedCertificate,
  readClientCertificate,
} from '../egress/client_certificate.ts';
import type { ConnectorOptions } from '../egress/connector.ts';
import { type Catalogue, type CatalogueEntry, createCatalogue } from '../events/catalogue.ts';
import type { ConversionSource } from '../events/conversion_source.ts';
import type { FanOutWaker } from '../events/fan_out_waker.ts';
import { Intake } from '../events/intake.ts';
import { createIntakeMetrics } from '../events/intake_metrics.ts';
import type { EventKind } from '../events/kind.ts';
import type { StoredEvent } from '../events/store.ts';
import type { Principal } from '../grants/principal.ts';
import { EngineHandle } from './engine/engine_handle.ts';
import { kindArrays } from './fan_out/fan_out.ts';
import { takeNodeName } from './lanes/node_name.ts';
import { EventReader } from './reader/event_reader.ts';
import { LaneWatch } from './reader/lane_watch.ts';
import type { AgentMessageSettings } from './sending/agent_message.ts';
import { recordAttemptSpan } from './sending/attempt_span.ts';
import type { DeploymentSigners } from './sending/delivery_request.ts';
import { Handshakes } from './sending/handshake.ts';
import {
  noticesOf,
  type PresentationSettings,
  type PresentedVersion,
  Presenter,
} from './sending/presentation.ts';
import type { WebhookSettings } from './settings.ts';
import { startAgentSweep } from './subscriptions/agent_sweep.ts';
import { ownerOf } from './subscriptions/owner.ts';
import { SubscriptionQuotas } from './subscriptions/subscription_quotas.ts';

export interface WebhooksOptions {
  /** Used by requests. */
  db: Database;
  /** Used to read events by sequence. */
  logDb: Database;
  /** The deployment's keys that sign. */
  signers: DeploymentSigners;
  databaseUrl: string;
  /** Maximum database connections of the engine. */
  engineConnections: number;
  /** Whether the engine's thread returns the memory that its start needed. */
  collectsGarbage: boolean;
  waker: FanOutWaker;
  /** Not started yet: the constructor adds listeners. */
  notifications: Notifications;
  /** Receives the metrics of this thread. */
  registry: Registry;
  config: Config;
  secret: Buffer;
  /** The platform's kinds. */
  kinds: readonly EventKind[];
  settings: WebhookSettings;
  agents: AgentMessageSettings;
  /** Where the functions of the kinds' versions are. */
  conversions: ConversionSource | null;
  /** Overrides for connections to subscribers. */
  egress: Pick<ConnectorOptions, 'extraCa' | 'resolveHost' | 'proxy'>;
  /** The proxy of deliveries, with the connections that these may have. */
  engineProxy: Pick<ConnectorOptions, 'proxy'>;
  /** Notifications on a channel proved false. */
  onFalseHints: (channel: string, count: number) => void;
  /** In a thread of its own, or in this one. */
  enginePlace: 'thread' | 'here';
  logger: Logger;
}

export interface Webhooks {
  /** All kinds, including built-in ones. */
  readonly catalogue: Catalogue;
  /** Builds the bodies that subscriptions get. */
  readonly presenter: Presenter;
  readonly quotas: SubscriptionQuotas;
  /** Reads events by sequence. */
  readonly reader: EventReader;
  /** Wakes those who wait for events. */
  readonly watch: LaneWatch;
  /** Challenges URLs before they are stored. */
  readonly handshakes: Handshakes;
  /** Null if the deployment has none. */
  readonly clientCertificate: PublishedCertificate | null;
  /** Call it after each commit that has stored events, with those events. */
  onPublished(events: StoredEvent[]): void;
  /** Call it after a recovery was stored. */
  recover(): void;
  /** Call it with the positions of events whose bodies were erased. */
  onErased(positions: number[]): void;
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
  const { db, waker, config } = options;
  const catalogue: Catalogue = createCatalogue(options.kinds);
  const certificate =
    config.clientCertificate === null ? null : readClientCertificate(config.clientCertificate);
  const engine = createEngine(options, catalogue, certificate);
  const handshakes = createHandshakes(options, certificate);
  waker.onWake(() => engine.wake());
  const onPublished = (events: StoredEvent[]) => {
    engine.remember(events);
    waker.wake();
  };

  const intake = createIntake(options, catalogue, onPublished);
  const presenter = new Presenter(presentationOf(options, catalogue), (error) =>
    options.logger.warn({ err: error }, 'an event could not be shown in an earlier version'),
  );
  const quotas = new SubscriptionQuotas(db, options.settings.quotas);
  const { reader, watch } = createReader(options, catalogue, presenter);
  let stopSweep = async () => {};

  return {
    catalogue,
    presenter,
    quotas,
    reader,
    watch,
    handshakes,
    clientCertificate: certificate?.published ?? null,
    onPublished,
    recover: () => engine.recover(),
    onErased: (positions) => engine.forget(positions),
    async quotasOf(principal) {
      if (!principal.scopes.has('read:webhooks') && !principal.scopes.has('write:webhooks')) return null;
      const owner = ownerOf(principal, 'read');
      const uses = [...(await quotas.readUses(owner)), await quotas.readResponseUse(owner)];
      return Object.fromEntries(uses.map(({ name, limit, left }) => [name, { limit, left }]));
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
      const names = options.kinds.map(({ name }) => name);
      stopSweep = startAgentSweep(db, names, (error) =>
        options.logger.warn({ err: error }, 'subscriptions of agents could not be ended'),
      );
    },
    async stop() {
      watch.stop();
      await stopSweep();
      await handshakes.close();
      await presenter.stop();
      await intake.stop();
      await engine.stop();
    },
  };
}

function presentationOf(
  { config, conversions }: WebhooksOptions,
  { kinds }: Catalogue,
): PresentationSettings {
  const resources = kinds
    .values()
    .flatMap(({ name, resource }) => (resource ? [[name, resource] as const] : []));
  const versions = new Map(kinds.values().map((kind) => [kind.name, presentedVersions(kind)]));
  return { baseUrl: config.baseUrl, resources: new Map(resources), versions, conversions };
}

function presentedVersions({ versions }: CatalogueEntry): PresentedVersion[] {
  return versions.toReversed().map((described) => {
    const lines = noticesOf(described).map(([name, value]) => `${name}: ${value}\r\n`);
    return { name: described.version, notices: lines.join('') };
  });
}

/** How connections reach subscribers. */
function egressOf({ egress, config, settings }: WebhooksOptions): ConnectorOptions {
  return { ...egress, allowLoopback: config.insecureSubscribers, allow: settings.allow };
}

function createHandshakes(options: WebhooksOptions, certificate: OwnCertificate | null): Handshakes {
  const { settings, signers } = options;
  return new Handshakes({
    ...egressOf(options),
    ...(certificate === null ? {} : { clientCertificate: { cert: certificate.cert, key: certificate.key } }),
    headerNames: settings.headers,
    signers,
    isRequired: settings.handshake,
  });
}

function createEngine(
  options: WebhooksOptions,
  catalogue: Catalogue,
  certificate: OwnCertificate | null,
): EngineHandle {
  const { waker, config, secret, logger } = options;
  // Built-in events are addressed to certain subscriptions, so they are not replayed.
  const declared = [...catalogue.kinds].filter(([, { isBuiltIn }]) => !isBuiltIn);
  return new EngineHandle({
    settings: {
      databaseUrl: options.databaseUrl,
      connectionsMax: options.engineConnections,
      collectsGarbage: options.collectsGarbage,
      secret,
      egress: { ...egressOf(options), ...options.engineProxy },
      clientCertificate: certificate && { cert: certificate.cert, key: certificate.key },
      retryScheduleSeconds: config.retryScheduleSeconds,
      nodeName: config.nodeName,
      headerNames: options.settings.headers,
      presentation: presentationOf(options, catalogue),
      quotas: options.settings.quotas,
      agents: options.agents,
      kinds: kindArrays(catalogue, options.settings.appSubscriptions),
      replayableKinds: kindArrays(
        { ...catalogue, kinds: new Map(declared) },
        options.settings.appSubscriptions,
      ),
    },
    place: options.enginePlace,
    onWarning: (fields, message) => logger.warn(fields, message),
    onError: (fields, message) => logger.error(fields, message),
    onWake: () => waker.wake(),
    onLeadership: (leads) => waker.setLeadership(leads),
    onSpan: recordAttemptSpan,
    onFalseHints: options.onFalseHints,
  });
}

function createReader(
  { logDb, signers, secret, notifications, waker, settings, logger }: WebhooksOptions,
  catalogue: Catalogue,
  presenter: Presenter,
) {
  const { appSubscriptions, headers: headerNames } = settings;
  const kinds = kindArrays(catalogue, appSubscriptions);
  const sealer = createSealer(secret, 'subscription-secret');
  const reader = new EventReader({ db: logDb, kinds, sealer, headerNames, signers, presenter });
  const onError = (error: Error) => logger.warn({ err: error }, 'new events could not be looked for');
  const onWake = (listener: () => void) => waker.onWake(listener);
  return { reader, watch: new LaneWatch({ db: logDb, notifications, onWake, appSubscriptions, onError }) };
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
