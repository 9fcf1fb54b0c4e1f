/** What an operator watches: metrics, traces. */

import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { after, test } from 'node:test';
import { type Context, context, propagation, ROOT_CONTEXT, trace } from '@opentelemetry/api';
import { W3CTraceContextPropagator } from '@opentelemetry/core';
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base';
import { createApiUser, requester } from './support/api.ts';
import { startTestServer } from './support/server.ts';

// What an operator's `--import` does: an SDK with an exporter.
const exporter = new InMemorySpanExporter();
trace.setGlobalTracerProvider(
  new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }),
);
propagation.setGlobalPropagator(new W3CTraceContextPropagator());
const storage = new AsyncLocalStorage<Context>();
context.setGlobalContextManager({
  active: () => storage.getStore() ?? ROOT_CONTEXT,
  with: (active, work, self, ...parameters) =>
    storage.run(active, () => work.apply(self as never, parameters)),
  bind: (_active, target) => target,
  enable() {
    return this;
  },
  disable() {
    return this;
  },
});

const server = await startTestServer({ after });
const ada = await createApiUser(server);

async function metrics(): Promise<string> {
  const response = await fetch(`${server.baseUrl}/metrics`);
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-type') ?? '', /^text\/plain; version=/);
  return response.text();
}

test('requests are counted by route and status, never by path', async () => {
  const { body } = await ada.request('POST', '/articles', { json: { title: 'x' } });
  for (let count = 0; count < 3; count++) await ada.request('GET', `/articles/${body.id}`);
  await ada.request('GET', '/articles/nothing');
  await requester(server)('GET', `/secret/${body.id}`);
  const text = await metrics();
  assert.match(text, /^nuncio_http_requests_total\{method="GET",route="\/articles\/:id",status="200"\} 3$/m);
  assert.match(text, /^nuncio_http_requests_total\{method="GET",route="\/articles\/:id",status="404"\} 1$/m);
  assert.match(text, /^nuncio_http_requests_total\{method="POST",route="\/articles",status="201"\} 1$/m);
  assert.match(text, /^nuncio_http_requests_total\{method="GET",route="none",status="404"\} 1$/m);
  assert.match(
    text,
    /^nuncio_http_request_duration_seconds_count\{method="GET",route="\/articles\/:id"\} 4$/m,
  );
  assert.ok(!text.includes(body.id));
});

test('the database’s connections and the event loop’s lag are there', async () => {
  const text = await metrics();
  for (const state of ['busy', 'idle', 'waiting']) {
    assert.match(text, new RegExp(`^nuncio_database_connections\\{state="${state}"\\} \\d+$`, 'm'));
  }
  assert.match(text, /^nodejs_eventloop_lag_p99_seconds /m);
});

test('a request is a span, within the caller’s, and its transaction is a span within it', async () => {
  exporter.reset();
  const traceId = '0af7651916cd43dd8448eb211c80319c';
  const traceparent = `00-${traceId}-b7ad6b7169203331-01`;
  const { headers } = await ada.request('POST', '/articles?x', {
    json: { title: 'x' },
    headers: { traceparent },
  });
  const made = await ada.request('POST', '/articles', { json: { title: 'x' }, headers: { traceparent } });
  assert.equal(made.status, 201);
  const spans = exporter.getFinishedSpans();
  const requests = spans.filter((span) => span.name === 'POST /articles');
  assert.equal(requests.length, 2);
  const [refused, done] = requests;
  assert.equal(refused?.attributes['nuncio.request_id'], headers.get('request-id'));
  assert.equal(refused?.attributes['url.path'], '/articles');
  assert.equal(refused?.attributes['http.response.status_code'], 400);
  assert.equal(done?.spanContext().traceId, traceId);
  assert.equal(done?.parentSpanContext?.spanId, 'b7ad6b7169203331');
  const transaction = spans.find((span) => span.name === 'database transaction');
  assert.equal(transaction?.parentSpanContext?.spanId, done?.spanContext().spanId);
});
