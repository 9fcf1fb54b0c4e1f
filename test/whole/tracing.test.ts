/** Traces from an API call over its event to the attempts, in a real collector, with the SDK that operators load. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { type CollectedSpan, prepareCollector, readSpans } from '../support/programs/collector.ts';
import { prepareNodePackage } from '../support/programs/node_package.ts';
import { prepareProcess, startProcess } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const folder = await mkdtemp(join(tmpdir(), 'nuncio-tracing-'));
after(() => rm(folder, { recursive: true, force: true }));

// Built outside the test, whose time is limited.
const collectorProgram = await prepareCollector();
const sdk = await prepareNodePackage('@opentelemetry/sdk-node', '0.301.0');

/** Starts a collector that prints the spans it receives by OTLP over HTTP. */
async function startCollector(t: TestContext, program: string) {
  const port = await freePort();
  const config = join(folder, 'collector.yaml');
  await writeFile(
    config,
    `receivers: { otlp: { protocols: { http: { endpoint: '127.0.0.1:${port}' } } } }
exporters: { debug: { verbosity: detailed } }
service:
  telemetry: { metrics: { level: none } }
  pipelines: { traces: { receivers: [otlp], exporters: [debug] } }
`,
  );
  const child = spawn(program, ['--config', config], { stdio: ['ignore', 'pipe', 'pipe'] });
  t.after(() => child.kill('SIGKILL'));
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  await until(
    async () => output,
    (text) => text.includes('Everything is ready'),
  );
  return { url: `http://127.0.0.1:${port}`, spans: () => readSpans(output) };
}

/** As an operator writes it. @returns the path for `--import` */
async function writeTelemetry(sdk: string, url: string): Promise<string> {
  const file = join(folder, 'telemetry.mjs');
  await writeFile(
    file,
    `import { createRequire } from 'node:module';
     const { NodeSDK } = createRequire(import.meta.url)(${JSON.stringify(sdk)});
     process.env.OTEL_EXPORTER_OTLP_ENDPOINT = ${JSON.stringify(url)};
     process.env.OTEL_EXPORTER_OTLP_PROTOCOL = 'http/protobuf';
     process.env.OTEL_TRACES_EXPORTER = 'otlp';
     process.env.OTEL_METRICS_EXPORTER = 'none';
     process.env.OTEL_LOGS_EXPORTER = 'none';
     process.env.OTEL_BSP_SCHEDULE_DELAY = '100';
     new NodeSDK({ serviceName: 'nuncio' }).start();`,
  );
  return file;
}

test('a collector gets one trace from the API call over the transaction to each attempt', async (t) => {
  if ('missing' in collectorProgram) return t.skip(collectorProgram.missing);
  if ('missing' in sdk) return t.skip(sdk.missing);
  const collector = await startCollector(t, collectorProgram.program);
  const telemetry = await writeTelemetry(sdk.folder, collector.url);
  const host = await prepareProcess(t, { NUNCIO_RETRY_SCHEDULE: '1s' });
  const server = startProcess(t, ['start'], host.settings, ['--import', telemetry]);
  await server.ready();
  const app = await createApp({ ...host });
  const subscriber = await startSubscriber(t, answer(500));
  await subscribe(app, { url: subscriber.url });

  const [traceId, callerId] = ['0af7651916cd43dd8448eb211c80319c', 'b7ad6b7169203331'];
  const created = await app.request('POST', '/articles', {
    json: { title: 'Traced' },
    headers: { traceparent: `00-${traceId}-${callerId}-01` },
  });
  assert.equal(created.status, 201, created.text);
  await subscriber.waitFor(1);
  subscriber.behave(answer(204));
  const received = await subscriber.waitFor(2);
  const isOurs = (span: CollectedSpan) => span.traceId === traceId;
  const spans = await until(
    async () => collector.spans().filter(isOurs),
    (found) => found.filter(({ kind }) => kind === 'Client').length === 2,
  );

  const request = spans.find(({ parentId }) => parentId === callerId);
  assert.ok(request, JSON.stringify(spans));
  assert.deepEqual([request.name, request.kind], ['POST /articles', 'Server']);
  assert.equal(request.attributes['http.response.status_code'], '201');
  const attempts = spans.filter(({ kind }) => kind === 'Client');
  assert.deepEqual(attempts.map(({ attributes }) => attributes['http.response.status_code']).sort(), [
    '204',
    '500',
  ]);
  for (const { parentId, attributes } of attempts) {
    assert.equal(attributes['nuncio.event.kind'], 'article.created');
    assert.equal(attributes['nuncio.delivery.id'], received[0]?.headers['nuncio-delivery']);
    // The span that wrote the event, within the request.
    const writer = spans.find(({ id }) => id === parentId);
    assert.equal(writer?.parentId, request.id, JSON.stringify(spans));
  }
  assert.equal(received[0]?.headers.traceparent, undefined, 'subscribers get no trace');
});
