/** What the doctor reads from the metrics of a node. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { nodeProbes } from '../../src/doctor/node.ts';
import { type Check, examine } from '../../src/doctor/report.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });

const readMetrics = async () => (await fetch(`${server.baseUrl}/metrics`)).text();

async function examined(metrics: string | undefined): Promise<Map<string, Check>> {
  const { checks } = await examine(nodeProbes(async () => metrics));
  return new Map(checks.map((each) => [each.name, each]));
}

/** Gives a metric of the text another value. */
function withValue(text: string, name: string, value: number): string {
  const line = new RegExp(`^${name}(\\{\\})? .*$`, 'm');
  assert.match(text, line);
  return text.replace(line, `${name}$1 ${value}`);
}

test('the event loop, the engine and the files of a node are read from its metrics', async () => {
  const names = ['node.event_loop', 'node.engine', 'node.open_files'];
  // The lag is known after a while.
  const checks = await until(
    async () => examined(await readMetrics()),
    (each) => names.every((name) => (each.get(name)?.state ?? 'unknown') !== 'unknown'),
  );
  assert.deepEqual([...checks.keys()], names);
});

test('a late event loop, a busy engine and few files are found', async () => {
  const text = await readMetrics();
  const found = async (name: string, metric: string, value: number) => {
    const check = (await examined(withValue(text, metric, value))).get(name);
    return [check?.state, check?.summary, check?.advice];
  };
  const lag = (value: number) => found('node.event_loop', 'nodejs_eventloop_lag_p99_seconds', value);
  const [warned, summary, advice] = await lag(0.2);
  assert.deepEqual([warned, summary], ['warning', 'the event loop of this node lags by 200 ms (p99)']);
  assert.match(advice ?? '', /add a node/);
  assert.equal((await lag(1))[0], 'error');
  assert.equal((await lag(0.05))[0], 'ok');
  assert.deepEqual(await found('node.engine', 'nuncio_engine_utilization', 0.95), [
    'warning',
    'the engine thread was busy for 95 % of the time since the last reading',
    'If this lasts for minutes, add a node.',
  ]);
  assert.equal((await found('node.engine', 'nuncio_engine_utilization', 0.5))[0], 'ok');
  const files = await found('node.open_files', 'process_max_fds', 1_024);
  assert.deepEqual(files.slice(0, 2), ['warning', 'the node may open only 1024 files']);
  assert.match(files[2] ?? '', /LimitNOFILE/);
});

test('without metrics of a node the doctor says where to run it', async () => {
  const checks = await examined(undefined);
  const loop = checks.get('node.event_loop');
  assert.deepEqual([checks.size, loop?.state], [1, 'unknown']);
  assert.match(loop?.advice ?? '', /on the machine of a node/);
});
