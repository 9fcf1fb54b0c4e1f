/** The page of metrics: name, type, labels and help of what each room registers. */

import { Registry } from 'prom-client';
import type { Database } from '../../src/database/database.ts';
import { createIntakeMetrics } from '../../src/events/intake_metrics.ts';
import { countFalseHints, countRequests } from '../../src/http/metrics.ts';
import { limitConnections } from '../../src/http/overload/connection_limit.ts';
import { createOverloadMetrics } from '../../src/http/overload/overload_metrics.ts';
import { createMailMetrics } from '../../src/mail/metrics.ts';
import { restartMetric } from '../../src/webhooks/engine/engine_handle.ts';
import { createWorkerMetrics } from '../../src/webhooks/lanes/metrics.ts';
import { addAcknowledgementMetrics } from '../../src/webhooks/reader/acknowledgement.ts';
import { code, generatedNotice, table } from './markdown.ts';

const introduction = `# Metrics

Every metric of Nuncio at \`/metrics\`. Counters and histograms belong to the node. [operations.md](../operations.md#metrics) says who may read
them and what to watch for, and [monitoring.md](../monitoring.md) has alerts. The node also reports the process's metrics of \`prom-client\`
(\`process_…\`, \`nodejs_…\`).`;

interface Metric {
  name: string;
  type: string;
  labels: readonly string[];
  help: string;
}

export function metricsPage(): string {
  const rows = readMetrics().map(({ name, type, labels, help }) => [
    code(name),
    type,
    labels.map(code).join(', '),
    help,
  ]);
  return `${[generatedNotice, introduction, table(['metric', 'type', 'labels', 'meaning'], rows)].join('\n\n')}\n`;
}

/** Registers all metrics, without a server. Nothing is collected, so no database is read. */
export function readMetrics(): Metric[] {
  const registry = new Registry();
  const db = {} as Database;
  countRequests({ addHook: () => undefined } as never, registry, db);
  countFalseHints(registry);
  createOverloadMetrics(registry, {} as never, {} as never);
  const app = { server: { on: () => undefined } } as never;
  limitConnections(app, {
    registry,
    connectionsMax: 0,
    trustProxy: [],
    page: (_problem, _request, reply) => reply,
  });
  createMailMetrics(registry, db);
  createIntakeMetrics(registry, db);
  createWorkerMetrics(registry, db, () => {
    throw new Error('nothing is collected');
  });
  addAcknowledgementMetrics(registry, db);
  const registered = registry.getMetricsAsArray() as unknown as (Omit<Metric, 'labels'> & {
    labelNames: string[];
    constructor: { name: string };
  })[];
  const metrics = registered.map((metric) => ({
    name: metric.name,
    type: metric.constructor.name.toLowerCase(),
    labels: metric.labelNames,
    help: metric.help,
  }));
  return [...metrics, { ...restartMetric, labels: [] }].sort((one, other) =>
    one.name < other.name ? -1 : 1,
  );
}
