/**
 * A sender built on pg-boss as its documentation recommends for throughput: one job per delivery, inserted and
 * fetched in batches, fetched again immediately while batches are full, woken by notifications. Each job of a batch
 * has its own result (https://pgboss.io/api/workers). Completed jobs stay in the queue with the attempt's outcome as
 * their output, so it needs no separate log.
 *
 * Settings tried, 20,000 deliveries each: CPU in µs for each delivery (Node + PostgreSQL), published while the sender
 * works, and from a backlog. The rates of those runs say less, because the machine had other load:
 *
 *   batches of 10, 10 workers        60 + 175   59 + 126
 *   batches of 64, 4 workers         51 + 119   47 +  70
 *   the same in the common table     49 + 106   45 +  58
 *   batches of 100, 2 workers        52 +  98   54 +  58
 *   batches of 256, 2 workers        45 +  93   42 +  44
 *   batches of 500, 4 workers        46 + 109   39 +  42
 *   batches of 500, 2 workers        41 +  88   40 +  41   <- chosen
 *
 * The price of large batches: one hanging subscriber delays the completion of the other 499 jobs and the next fetch.
 */

import { PgBoss } from 'pg-boss';
import { Pool } from 'undici';
import { monotonicMs } from './measure.ts';
import { openPool } from './postgres.ts';
import type { OpenSender, Sender } from './sender.ts';
import { connectionsMax, type Delivery, postSigned } from './signed_post.ts';

const queue = 'deliver';

export interface PgBossSettings {
  /** Number of jobs that are fetched, sent and completed together. */
  batchSize: number;
  /** Number of workers, each with its own batch. */
  localConcurrency: number;
  databaseConnections: number;
  /** Whether the queue has its own table. */
  partition: boolean;
}

export const pgBossSettings: PgBossSettings = {
  batchSize: 500,
  localConcurrency: 2,
  databaseConnections: 10,
  partition: true,
};

export const openPgBossSender: OpenSender<PgBossSettings> = async (
  databaseUrl,
  origin,
  settings,
): Promise<Sender> => {
  const database = openPool(databaseUrl, 2);
  const boss = new PgBoss({
    connectionString: databaseUrl,
    max: settings.databaseConnections,
    useListenNotify: true,
  });
  boss.on('error', (error) => console.error(error));
  await boss.start();
  await boss.createQueue(queue, {
    notify: true,
    partition: settings.partition,
    retryLimit: 12,
    retryDelay: 5,
    retryBackoff: true,
  });
  const subscriber = new Pool(origin, { connections: connectionsMax, pipelining: 1 });

  return {
    async publish(deliveries) {
      await boss.insert(
        queue,
        deliveries.map((delivery) => ({ data: delivery })),
      );
    },
    async start() {
      await boss.work<Delivery>(
        queue,
        {
          batchSize: settings.batchSize,
          localConcurrency: settings.localConcurrency,
          burstWhenBatchFull: true,
          pollingIntervalSeconds: 0.5,
          notifyPollingIntervalSeconds: 0.5,
          // A failed delivery must not repeat the others of its batch. The output is the record of the attempt.
          perJobResults: true,
        },
        (jobs) =>
          Promise.all(
            jobs.map(async ({ id, data }) => {
              const startedAt = monotonicMs();
              const status = await postSigned(subscriber, data).catch(() => 0);
              const output = { status, duration_ms: monotonicMs() - startedAt };
              return { id, status: status >= 200 && status <= 299 ? 'completed' : 'failed', output } as const;
            }),
          ),
      );
    },
    async recorded() {
      const { rows } = await database.query<{ count: string }>(
        `select count(*) from pgboss.job where name = $1 and state = 'completed' and output is not null`,
        [queue],
      );
      return Number(rows[0]?.count);
    },
    async stop() {
      await boss.stop({ graceful: true });
      await subscriber.close();
      await database.end();
    },
  };
};
