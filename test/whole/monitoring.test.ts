/** The alerts and the dashboard: their metrics are those of a running server, and each alert fires and has its paragraph. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { prepareGoTool } from '../support/programs/go_tool.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const run = promisify(execFile);
const checkout = join(import.meta.dirname, '../..');
const read = (path: string) => readFile(join(checkout, path), 'utf8');
const rules = await read('deploy/prometheus/rules.yaml');
const dashboard: Dashboard = JSON.parse(await read('deploy/grafana/nuncio.json'));

interface Dashboard {
  panels: { id: number; title: string; targets: { expr: string }[] }[];
}

const expressions = {
  rules: [...rules.matchAll(/^ +expr: '(.+)'$/gm)].map(([, text = '']) => text),
  dashboard: dashboard.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
};

/** Samples that Prometheus adds itself. */
const ofPrometheus = new Set(['up']);

/** The metrics of an expression, with the names of the labels that it selects by. */
function metricsOf(expression: string): { name: string; labels: string[] }[] {
  return [...expression.matchAll(/\b([a-z]\w+)\{([^}]*)\}/g)].map(([, name = '', selector = '']) => ({
    name,
    labels: [...selector.matchAll(/(\w+)\s*[=!]/g)].map(([, label = '']) => label),
  }));
}

// Built outside the test, whose time is limited. Service discovery is most of the program, and rules need none.
const promtool = await prepareGoTool('github.com/prometheus/prometheus/cmd/promtool', 'v0.316.0', [
  'remove_all_sd',
]);

test('every metric of the alerts and of the dashboard is one of a running server, with its labels', async (t) => {
  const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await publish(await createPublisher(server), app.account, ['one']);
  await subscriber.waitFor(1);
  const metrics = async () => (await fetch(`${server.baseUrl}/metrics`)).text();
  const text = await until(metrics, (each) => /^nuncio_delivery_attempts_total\{.*accepted/m.test(each));
  const labelsOf = new Map<string, Set<string>>();
  for (const [, name = '', labels = ''] of text.matchAll(/^([a-z]\w+)(?:\{(.*)\})? /gm)) {
    const known = labelsOf.get(name) ?? new Set<string>();
    for (const [, label = ''] of labels.matchAll(/(\w+)="/g)) known.add(label);
    labelsOf.set(name, known);
  }
  const declared = new Set([...text.matchAll(/^# TYPE (\w+) /gm)].map(([, name]) => name));
  const wrong: string[] = [];
  for (const [where, texts] of Object.entries(expressions)) {
    assert.ok(texts.length > 15, where);
    for (const expression of texts) {
      const found = metricsOf(expression);
      assert.ok(found.length > 0, expression);
      for (const { name, labels } of found.filter((each) => !ofPrometheus.has(each.name))) {
        const base = name.replace(/_(bucket|sum|count)$/, '');
        if (!declared.has(name) && !declared.has(base)) wrong.push(`${where}: ${name}`);
        const known = labelsOf.get(name);
        // A counter has no series before its first event.
        for (const label of known === undefined ? [] : labels)
          if (!known?.has(label) && label !== 'job') wrong.push(`${where}: ${name}{${label}}`);
      }
    }
  }
  assert.deepEqual(wrong, []);
});

test('every metric of the server that says what to watch for has an alert or a panel', async () => {
  const page = await read('docs/operations.md');
  const documented = [...page.matchAll(/^\| `(nuncio_\w+)` \| \S/gm)].map(([, name = '']) => name);
  assert.ok(documented.length > 15);
  const all = [...expressions.rules, ...expressions.dashboard].join('\n');
  // How many lanes a node claims at once is for benchmarks.
  const shown = documented.filter((name) => name !== 'nuncio_lane_claim_size');
  assert.deepEqual(
    shown.filter((name) => !all.includes(name)),
    [],
  );
});

test('each alert has a paragraph that its annotation names, and no paragraph is left over', async () => {
  const page = await read('docs/monitoring.md');
  const names = [...rules.matchAll(/^ +- alert: (\w+)$/gm)].map(([, name = '']) => name);
  const runbooks = [...rules.matchAll(/^ +runbook: docs\/monitoring\.md#(\w+)$/gm)].map(
    ([, name = '']) => name,
  );
  assert.deepEqual(
    runbooks,
    names.map((name) => name.toLowerCase()),
  );
  const headings = [...page.matchAll(/^### (\w+)$/gm)].map(([, name = '']) => name);
  assert.deepEqual(headings, names);
  for (const part of page.split(/^### /m).slice(1))
    assert.match(part, /^\w+\n\n\*(Critical|Warning)\.\* .+\n\n.+\n/, 'what it means, and what to do');
});

test('the panels of the dashboard have their own ids and titles', () => {
  const { panels } = dashboard;
  assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length);
  assert.equal(new Set(panels.map(({ title }) => title)).size, panels.length);
});

test('promtool accepts the alerts, and each fires when it should and only then', async (t) => {
  if ('missing' in promtool) return t.skip(promtool.missing);
  const { program } = promtool;
  const output = async (...words: string[]) => {
    const { stdout, stderr, code = 0 } = await run(program, words, { cwd: checkout }).catch((error) => error);
    return { text: stdout + stderr, code };
  };
  const checked = await output('check', 'rules', 'deploy/prometheus/rules.yaml');
  assert.equal(checked.code, 0, checked.text);
  assert.match(checked.text, new RegExp(`SUCCESS: ${expressions.rules.length} rules found`));
  const tested = await output('test', 'rules', 'deploy/prometheus/rules_test.yaml');
  assert.equal(tested.code, 0, tested.text);
  const cases = await read('deploy/prometheus/rules_test.yaml');
  const fired = [...cases.matchAll(/^ {2}- name: (\w+) fires$/gm)].map(([, name]) => name);
  assert.deepEqual(
    fired,
    [...rules.matchAll(/^ +- alert: (\w+)$/gm)].map(([, name]) => name),
  );
});
