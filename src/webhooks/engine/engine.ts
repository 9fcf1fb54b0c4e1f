/**
 * The engine: fan-out, lanes, sending, recording and periodic work, with its own database connections. The server communicates
 * with it only by messages, so it can run in a thread (engine_thread.ts), where requests and deliveries do not delay each
 * other. It learns what other nodes change from the database.
 *
 *   created → started → stopping (attempts in flight finish and are recorded) → stopped
 *
 * An engine belongs to one epoch of the database (src/database/epoch.ts). In another epoch its memory is wrong: it opens no
 * connection, writes nothing and ends at once. The server then starts a new engine with empty memory.
 */

import type { MessagePort } from 'node:worker_threads';
import { Registry } from 'prom-client';
import { createSealer } from '../../crypto/sealing.ts';
import { type Database, isDatabaseUnavailable } from '../../database/database.ts';
import { enterEpoch } from '../../database/epoch.ts';
import { Notifications } from '../../database/notifications.ts';
import { ensurePartitions } from '../../database/partitions.ts';
import { createGuardedFetch } from '../../egress/fetch.ts';
import { collectAtRest } from '../../garbage_collection.ts';
import { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import { stepRecovery } from '../fan_out/recovery.ts';
import { RecoveryTurns } from '../fan_out/recovery_turns.ts';
import { endLongWaits } from '../lanes/long_waits.ts';
import { createWorkerMetrics, type WorkerMetrics } from '../lanes/metrics.ts';
import { removeDeadNodes } from '../lanes/node.ts';
import { takeNodeName } from '../lanes/node_name.ts';
import { Worker } from '../lanes/worker.ts';
import { applyRetention, countExpiringParked } from '../log/retention.ts';
import { addAcknowledgementMetrics } from '../reader/acknowledgement.ts';
import { AgentControl } from '../sending/agent_control.ts';
import { Authorizer, tokenBytesMax } from '../sending/authorization.ts';
import { DeliveryKeyring } from '../sending/delivery_keyring.ts';
import { Presenter } from '../sending/presentation.ts';
import { Sender } from '../sending/sender.ts';
import { AgentCursors } from '../subscriptions/agent_cursor.ts';
import { holdFailingAgents } from '../subscriptions/agent_hold.ts';
import { disableFailing, warnFailing } from '../subscriptions/failing.ts';
import { disableByWorker } from '../subscriptions/subscription_state.ts';
import { type EngineDatabases, openEngineDatabases } from './engine_databases.ts';
import {
  type EngineResponses,
  type EngineSettings,
  type FromEngine,
  messageBytes,
  type ToEngine,
} from './engine_messages.ts';
import { ErrorLog } from './error_log.ts';
import { LaneWork } from './lane_work.ts';

/** Milliseconds between two runs of retention: usually, and if locks of others were in the way. */
const retentionPauseMs = { usual: 3_600_000, locked: 60_000 };
/** Milliseconds between searches for waits that are too long. */
const longWaitsPauseMs = 3_600_000;
/** Milliseconds between searches for subscriptions whose owners must be warned. */
const warnPauseMs = 600_000;
/**
 * Bytes of received messages after which the engine reports them to the server. Far below the server's limit for queued bytes.
 */
const receivedBytesStep = 1_048_576;
/** Milliseconds between searches for recoveries without a wake-up. */
const recoveryPauseMs = 5_000;

/** Runs an engine until it receives `stop`. */
export function runEngine(settings: EngineSettings, port: MessagePort): void {
  const engine = new Engine(settings, (message) => port.postMessage(message));
  port.on('message', (message: ToEngine) => {
    engine.receive(message).catch((error) => {
      const isOutage = isDatabaseUnavailable(error);
      port.postMessage({ type: 'failed', error, isOutage } satisfies FromEngine);
    });
  });
}

class Engine {
  readonly #databases: EngineDatabases;
  readonly #db: Database;
  readonly #slowDb: Database;
  readonly #notifications: Notifications;
  readonly #cache = new EventCache();
  readonly #registry = new Registry();
  readonly #sender: Sender;
  /** For tokens of subscribers' authorization servers. */
  readonly #tokens: ReturnType<typeof createGuardedFetch>;
  readonly #worker: Worker;
  readonly #agentControl: AgentControl;
  readonly #presenter: Presenter;
  readonly #metrics: WorkerMetrics;
  readonly #keys: DeliveryKeyring;
  readonly #post: (message: FromEngine) => void;
  readonly #timers: NodeJS.Timeout[] = [];
  #retentionTimer: NodeJS.Timeout | undefined;
  readonly #replayable: KindArrays;
  #recovering: Promise<void> | undefined;
  readonly #recoveryTurns = new RecoveryTurns();
  #receivedBytes = 0;
  readonly #predecessors: readonly string[];
  readonly #nodeName: string | null;
  readonly #retryScheduleSeconds: readonly number[];
  readonly #collectsGarbage: boolean;
  #isStarted = false;
  #stopCollecting = () => {};
  #isStopping = false;
  /** The database's epoch; undefined until the first connection. */
  #epoch: string | undefined;
  #isAbandoned = false;
  readonly #errors: ErrorLog;
  readonly #onError = (error: Error): void => this.#errors.add(error);
  readonly #failing = new LaneWork((lanes) => this.#endFailing(lanes), this.#onError);
  readonly #gone = new LaneWork((lanes) => this.#disableGone(lanes), this.#onError);

  constructor(settings: EngineSettings, post: (message: FromEngine) => void) {
    this.#post = post;
    this.#errors = new ErrorLog(
      () => this.#db,
      (entry) => post({ type: 'warning', ...entry }),
    );
    this.#replayable = settings.replayableKinds;
    this.#predecessors = settings.predecessors ?? [];
    this.#nodeName = settings.nodeName ?? null;
    this.#retryScheduleSeconds = settings.retryScheduleSeconds;
    this.#collectsGarbage = settings.collectsGarbage ?? false;
    const { databaseUrl, connectionsMax } = settings;
    const secret = Buffer.from(settings.secret);
    this.#databases = openEngineDatabases(databaseUrl, connectionsMax, {
      onIdleError: this.#onError,
      onConnect: async (client) => this.#enter(await enterEpoch(client)),
    });
    const { db, leaderDb, slowDb } = this.#databases;
    this.#db = db;
    this.#slowDb = slowDb;
    const { egress, clientCertificate } = settings;
    this.#tokens = createGuardedFetch(egress, { bytesMax: tokenBytesMax });
    this.#sender = new Sender({
      ...egress,
      ...(clientCertificate === null ? {} : { clientCertificate }),
      onSpan: (span) => post({ type: 'span', span }),
      mayBegin: () => this.#worker.isCurrent,
    });
    this.#notifications = new Notifications(databaseUrl, this.#onError, (channel, count) =>
      post({ type: 'false_hints', channel, count }),
    );
    const keys = new DeliveryKeyring({
      db,
      notifications: this.#notifications,
      secret,
      onError: this.#onError,
    });
    this.#keys = keys;
    const metrics = createWorkerMetrics(this.#registry, db, () => worker.status);
    addAcknowledgementMetrics(this.#registry, db);
    this.#metrics = metrics;
    this.#presenter = new Presenter(settings.presentation, this.#onError);
    const sealer = createSealer(secret, 'subscription-secret');
    const cursors = new AgentCursors(secret);
    this.#agentControl = new AgentControl({
      db,
      notifications: this.#notifications,
      sender: this.#sender,
      sealer,
      cursors,
      codeOf: settings.agents.codeOf,
      onError: this.#onError,
    });
    const worker: Worker = new Worker({
      metrics,
      onFailing: (lanes) => this.#failing.add(lanes),
      db,
      leaderDb,
      sender: this.#sender,
      sealer,
      cursors,
      webhookId: settings.agents.webhookId,
      cache: this.#cache,
      kinds: settings.kinds,
      headerNames: settings.headerNames,
      signers: (now) => keys.signers(now),
      presenter: this.#presenter,
      authorizer: new Authorizer(this.#tokens.fetch, clientCertificate !== null),
      retryScheduleSeconds: settings.retryScheduleSeconds,
      quotas: settings.quotas,
      nodeName: this.#nodeName,
      onLeadership: (leads) => post({ type: 'leadership', leads }),
      onEpoch: (epoch) => {
        if (epoch !== this.#epoch) this.#abandon();
      },
      onGone: (lane) => this.#gone.add([lane]),
      onError: this.#onError,
    });
    this.#worker = worker;
    post({ type: 'node', id: worker.node.id });
    worker.listen(this.#notifications);
  }

  async receive(message: ToEngine): Promise<void> {
    const { type } = message;
    this.#receivedBytes += messageBytes(message);
    if (this.#receivedBytes >= receivedBytesStep) {
      this.#post({ type: 'received', bytes: this.#receivedBytes });
      this.#receivedBytes = 0;
    }
    if (type === 'published') {
      this.#cache.putPublished(message.batch);
    } else if (type === 'wake') {
      this.#worker.wake();
    } else if (type === 'erased') {
      for (const position of message.positions) this.#cache.drop(position);
    } else if (type === 'recover') {
      this.#recover();
    } else if (type === 'ask') {
      // The engine continues if it cannot respond to a request.
      const value = await this.#respond(message.what).catch(this.#onError);
      this.#post({ type: 'response', id: message.id, value: value ?? undefined });
    } else if (type === 'start') {
      await this.#start();
      this.#post({ type: 'started' });
    } else {
      await this.#stop();
      this.#post({ type: 'stopped' });
    }
  }

  async #start(): Promise<void> {
    await this.#notifications.start();
    await this.#keys.start();
    // Partitions exist for a week, so a node starts without new ones: a backup may be in the way, or the database may be slow.
    await this.#ensurePartitions();
    // Deletes nothing until the clock of a machine that has just started has had an hour to be set right.
    this.#planRetention(true);
    const endWaits = () => void endLongWaits(this.#slowDb, this.#retryScheduleSeconds).catch(this.#onError);
    endWaits();
    this.#timers.push(
      setInterval(endWaits, longWaitsPauseMs),
      setInterval(() => this.#recover(), recoveryPauseMs),
      setInterval(() => void this.#warn().catch(this.#onError), warnPauseMs),
    );
    await removeDeadNodes(
      this.#db,
      this.#predecessors.map((id) => ({ id, heartbeats: null })),
    );
    // In another epoch, the database may have an earlier node of this name.
    await takeNodeName(this.#db, this.#nodeName);
    await this.#worker.start();
    this.#agentControl.start();
    // Not awaited: it reads every lane.
    void this.#warn().catch(this.#onError);
    if (this.#collectsGarbage) {
      this.#stopCollecting = collectAtRest({
        workDone: () => this.#metrics.attempts,
        beforeCollection: () => this.#cache.clear(),
      });
    }
    this.#isStarted = true;
  }

  /** @throws Error if the epoch is not the one that the engine belongs to */
  #enter(epoch: string): void {
    this.#epoch ??= epoch;
    if (epoch === this.#epoch && !this.#isAbandoned) return;
    this.#abandon();
    throw new Error('the engine belongs to an earlier epoch of the database');
  }

  /** Ends without writing anything. Attempts in flight are aborted. */
  #abandon(): void {
    if (this.#isAbandoned || this.#isStopping) return;
    this.#isAbandoned = true;
    this.#isStopping = true;
    for (const timer of this.#timers) clearInterval(timer);
    clearTimeout(this.#retentionTimer);
    this.#stopCollecting();
    this.#errors.stop();
    this.#worker.abandon();
    void this.#agentControl.stop();
    this.#keys.stop();
    // Not awaited: the old database may not respond.
    for (const closing of [
      this.#presenter.stop(),
      this.#sender.close(),
      this.#tokens.close(),
      this.#notifications.stop(),
      ...Object.values(this.#databases).map((database: Database) => database.destroy()),
    ]) {
      closing.catch(() => {});
    }
    this.#post({
      type: 'warning',
      fields: {},
      message: 'the database is in a new epoch: the delivery engine restarts',
    });
    this.#post({ type: 'new_epoch' });
  }

  async #stop(): Promise<void> {
    if (this.#isAbandoned) return;
    this.#isStopping = true;
    for (const timer of this.#timers) clearInterval(timer);
    clearTimeout(this.#retentionTimer);
    this.#stopCollecting();
    // At the same time: lanes go to other nodes while an agent does not respond.
    const worker = this.#isStarted ? this.#worker.stop() : this.#worker.abandon();
    await Promise.all([worker, this.#recovering, this.#agentControl.stop()]);
    await this.#presenter.stop();
    await this.#sender.close();
    await this.#tokens.close();
    this.#keys.stop();
    await this.#notifications.stop();
    this.#errors.stop();
    for (const database of Object.values(this.#databases) as Database[]) await database.destroy();
  }

  async #respond(what: keyof EngineResponses): Promise<EngineResponses[keyof EngineResponses]> {
    return what === 'metrics' ? this.#registry.metrics() : this.#worker.isUp;
  }

  async #ensurePartitions(): Promise<void> {
    const isDone = await ensurePartitions(this.#db).catch((error) => {
      if (isDatabaseUnavailable(error)) throw error;
      this.#onError(error as Error);
      return false;
    });
    if (isDone || this.#isStopping) return;
    const again = () => void this.#ensurePartitions().catch(this.#onError);
    this.#timers.push(setTimeout(again, retentionPauseMs.locked));
  }

  async #warnOfParked(): Promise<void> {
    const count = await countExpiringParked(this.#slowDb);
    if (count === 0) return;
    this.#post({
      type: 'warning',
      fields: { events: count },
      message: 'parked events will be deleted within three days: retry them, or they are lost',
    });
  }

  #planRetention(isComplete: boolean): void {
    if (this.#isStopping) return;
    const pauseMs = isComplete ? retentionPauseMs.usual : retentionPauseMs.locked;
    this.#retentionTimer = setTimeout(async () => {
      try {
        this.#planRetention(await applyRetention(this.#db, this.#slowDb));
      } catch (error) {
        this.#onError(error as Error);
        this.#retentionTimer?.refresh();
      }
      await this.#warnOfParked().catch(this.#onError);
    }, pauseMs);
  }

  #recover(): void {
    this.#recovering ??= (async () => {
      try {
        while (
          !this.#isStopping &&
          (await stepRecovery(this.#slowDb, this.#replayable, this.#recoveryTurns))
        );
      } catch (error) {
        this.#onError(error as Error);
      } finally {
        this.#recovering = undefined;
      }
    })();
  }

  async #disableGone(lanes: readonly number[]): Promise<void> {
    // Disabling a subscription publishes an event.
    if ((await disableByWorker(this.#db, lanes, 'gone')).length > 0) this.#post({ type: 'wake' });
  }

  async #endFailing(lanes: readonly number[]): Promise<void> {
    const disabled = await disableFailing(this.#db, lanes);
    for (const _lane of disabled) this.#metrics.failing('disabled');
    if (disabled.length > 0) this.#post({ type: 'wake' });
    // Last, because it takes longest.
    await holdFailingAgents(this.#db, lanes);
  }

  async #warn(): Promise<void> {
    const warnings = await warnFailing(this.#slowDb);
    for (const { subscription, warning, failingSince, disablesAt } of warnings) {
      this.#metrics.failing(warning);
      this.#post({
        type: 'warning',
        fields: { subscription, warning, failing_since: failingSince, disables_at: disablesAt },
        message: 'subscription will be disabled because its deliveries keep failing',
      });
    }
    if (warnings.length > 0) this.#post({ type: 'wake' });
  }
}
