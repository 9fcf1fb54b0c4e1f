/**
 * A sender built on graphile-worker as its documentation recommends for throughput: one job per delivery, added in
 * batches, fetched into a local queue, completed in batches (https://worker.graphile.org/docs/performance).
 *
 * Settings tried, 20,000 deliveries each: CPU in µs for each delivery (Node + PostgreSQL), published while the sender
 * works, and from a backlog. The rates of those runs say less, because the machine had other load:
 *
 *   no local queue, each job completed by itself (its default)              218 + 477   200 + 356
 *   64 jobs at once, local queue 500, completed as they come (0 ms)          62 +  73    50 +  46
 *   24 jobs, 25 connections (its own benchmark's)                            68 +  80    55 +  54
 *   128 jobs                                                                 62 +  70    52 +  47
 *   256 jobs, local queue 1,000                                              61 +  64    44 +  38
 *   local queue of jobs + 1, completed every 25 ms (its "starting point")    70 +  81    57 +  53
 *   local queue 1,000, completed every 25 ms                                 59 +  65    44 +  36
 *   the same with 128 jobs                                                   57 +  59    43 +  33
 *   local queue 500, completed every 250 ms                                  57 +  63    45 +  33
 *   local queue 1,000, completed every 250 ms                                57 +  58    41 +  31   <- chosen
 *   local queue 500, 0 ms, and no record of attempts                         60 +  61    45 +  36
 */

import { Logger, makeWorkerUtils, type Runner, run } from 'graphile-worker';
import { Pool } from 'undici';
import { AttemptLog, countAttempts, createAttempts } from './attempt_log.ts';
import { monotonicMs } from './measure.ts';
import { openPool } from './postgres.ts';
import type { OpenSender, Sender } from './sender.ts';
import { connectionsMax, type Delivery, postSigned } from './signed_post.ts';

export interface GraphileWorkerSettings {
  concurrentJobs: number;
  localQueueSize: number;
  /** Milliseconds; -1 completes each job separately. */
  completeJobBatchDelay: number;
  databaseConnections: number;
  /** Whether attempts are written to a table. Without it, a delivery leaves no trace except that its job is gone. */
  record: boolean;
}

export const graphileWorkerSettings: GraphileWorkerSettings = {
  concurrentJobs: 64,
  localQueueSize: 1_000,
  completeJobBatchDelay: 250,
  databaseConnections: 10,
  record: true,
};

export const openGraphileWorkerSender: OpenSender<GraphileWorkerSettings> = async (
  databaseUrl,
  origin,
  settings,
): Promise<Sender> => {
  const database = openPool(databaseUrl, settings.databaseConnections);
  // Otherwise it would write a line for each job.
  const logger = new Logger(() => (level, message) => {
    if (level === 'error') console.error(message);
  });
  const utils = await makeWorkerUtils({ pgPool: database, logger });
  await utils.migrate();
  await createAttempts(database);
  const subscriber = new Pool(origin, { connections: connectionsMax, pipelining: 1 });
  const attempts = new AttemptLog(database);
  let runner: Runner | undefined;
  let unrecorded = 0;

  const deliver = async (payload: unknown) => {
    const delivery = payload as Delivery;
    const startedAt = monotonicMs();
    const status = await postSigned(subscriber, delivery);
    const durationMs = monotonicMs() - startedAt;
    if (settings.record) await attempts.record({ delivery: delivery.id, status, durationMs });
    else unrecorded += 1;
    if (status < 200 || status > 299) throw new Error(`the subscriber answered ${status}`);
  };

  return {
    async publish(deliveries) {
      await utils.addJobs(deliveries.map((delivery) => ({ identifier: 'deliver', payload: delivery })));
    },
    async start() {
      runner = await run({
        pgPool: database,
        logger,
        noHandleSignals: true,
        taskList: { deliver },
        preset: {
          worker: {
            concurrentJobs: settings.concurrentJobs,
            localQueue: { size: settings.localQueueSize },
            completeJobBatchDelay: settings.completeJobBatchDelay,
            failJobBatchDelay: settings.completeJobBatchDelay,
          },
        },
      });
    },
    recorded: async () => (settings.record ? countAttempts(database) : unrecorded),
    async stop() {
      await runner?.stop();
      await utils.release();
      await subscriber.close();
      await database.end();
    },
  };
};
