/** Metrics and traces. */

import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { readFile } from 'node:fs/promises';
import { after, test } from 'node:test';
import {
  type Context,
  context,
  propagation,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';
import { W3CTraceContextPropagator } from '@opentelemetry/core';
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base';
import { sql } from 'kysely';
import { readMetrics } from '../../scripts/reference/metrics.ts';
import { countFalseHints, createRegistry } from '../../src/http/metrics.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, publish, pushBody, subscribe, until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

// Loads an SDK with an exporter, like the `--import` of an operator.
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

const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });
const ada = await createApiUser(server);

async function metrics(): Promise<string> {
  const response = await fetch(`${server.baseUrl}/metrics`);
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-type') ?? '', /^text\/plain; version=/);
  return response.text();
}

test('servers of one process share the metrics of the process, and no others', () => {
  const [one, other] = [createRegistry(), createRegistry()];
  const collection = one.getSingleMetric('nodejs_gc_duration_seconds');
  assert.notEqual(collection, undefined);
  assert.equal(other.getSingleMetric('nodejs_gc_duration_seconds'), collection);
  countFalseHints(one)('channel', 1);
  assert.equal(other.getSingleMetric('nuncio_false_hints_total'), undefined);
});

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

test('metrics include database connections and event loop lag', async () => {
  const text = await metrics();
  for (const state of ['busy', 'idle', 'waiting']) {
    assert.match(text, new RegExp(`^nuncio_database_connections\\{state="${state}"\\} \\d+$`, 'm'));
  }
  assert.match(text, /^nodejs_eventloop_lag_p99_seconds /m);
});

test('docs/reference/metrics.md describes every metric that is served, and no other', async () => {
  const text = await metrics();
  const served = [...text.matchAll(/^# HELP (nuncio_\w+) (.*)\n# TYPE \1 (\w+)$/gm)];
  const described = readMetrics().map(({ name, help, type }) => [name, help, type]);
  assert.deepEqual(described, served.map(([, ...each]) => each).toSorted());
  for (const { name, labels } of readMetrics()) {
    const [, found] = new RegExp(`^${name}(?:_count)?(?:\\{(.*)\\})? `, 'm').exec(text) ?? [];
    const names = [...(found ?? '').matchAll(/(\w+)="/g)].map(([, label]) => label);
    if (found !== undefined) assert.deepEqual(names.toSorted(), labels.toSorted(), name);
  }
});

test('docs/operations.md names only metrics that are served', async () => {
  const page = await readFile(new URL('../../docs/operations.md', import.meta.url), 'utf8');
  const text = await metrics();
  const named = [...page.matchAll(/`((?:nuncio|nodejs|process)_[a-z0-9_]+_(?:[a-z]+))`/g)].map(
    ([, name]) => name as string,
  );
  const known = named.filter((name) => !['nuncio_publisher'].includes(name));
  assert.ok(known.length > 20, `${known.length} were found`);
  for (const name of known) assert.match(text, new RegExp(`^# TYPE ${name} `, 'm'));
});

test('a request is a span within the caller’s, and its transaction a span within it', async () => {
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

const traceId = 'a3ce929d0e0e47364bf92f3577b34da6';
const sampled = `00-${traceId}-b7ad6b7169203331-01`;

/** Waits for the given number of finished attempt spans. */
function attemptSpans(count: number) {
  return until(
    async () => exporter.getFinishedSpans().filter(({ name }) => name === 'POST'),
    (spans) => spans.length >= count,
  );
}

test('a trace continues from the request to each delivery attempt, and no trace header reaches the subscriber', async (t) => {
  exporter.reset();
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [1] });
  const made = await app.request('POST', '/articles', {
    json: { title: 'x' },
    headers: { traceparent: sampled },
  });
  assert.equal(made.status, 201);
  await subscriber.waitFor(1);
  subscriber.behave(answer(204));
  await subscriber.waitFor(2);
  const [first, second] = await attemptSpans(2);

  const spans = exporter.getFinishedSpans();
  const request = spans.find(({ name }) => name === 'POST /articles');
  const transaction = spans.find(
    ({ name, parentSpanContext }) =>
      name === 'database transaction' && parentSpanContext?.spanId === request?.spanContext().spanId,
  );
  assert.ok(transaction);
  const { body: log } = await app.request('GET', `/subscriptions/${id}/deliveries`);
  for (const span of [first, second]) {
    assert.equal(span?.spanContext().traceId, traceId);
    assert.equal(span?.parentSpanContext?.spanId, transaction.spanContext().spanId);
    assert.equal(span?.kind, SpanKind.CLIENT);
  }
  const attributes = {
    'http.request.method': 'POST',
    'server.address': '127.0.0.1',
    'server.port': subscriber.port,
    'nuncio.delivery.id': log.items[0].id,
    'nuncio.event.kind': 'article.created',
  };
  assert.deepEqual(first?.attributes, {
    ...attributes,
    'http.response.status_code': 500,
    'error.type': 'unexpected_status',
  });
  assert.equal(first?.status.code, SpanStatusCode.ERROR);
  assert.deepEqual(second?.attributes, { ...attributes, 'http.response.status_code': 204 });
  assert.equal(second?.status.code, SpanStatusCode.UNSET);
  for (const { headers } of subscriber.received) {
    assert.equal(headers.traceparent, undefined);
    assert.equal(headers.tracestate, undefined);
  }
});

test('published events belong to their publisher’s trace, also without a response', async (t) => {
  exporter.reset();
  const subscriber = await startSubscriber(t);
  const silent = await startSubscriber(t, (_received, response) => response.destroy());
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await subscribe(app, { url: silent.url });
  const publisher = await createPublisher(server);
  const json = { kind: 'push', account: app.account.id, body: pushBody() };
  const { status } = await publisher('POST', '/events', { json, headers: { traceparent: sampled } });
  assert.equal(status, 202);
  const spans = await attemptSpans(2);
  const request = exporter.getFinishedSpans().find(({ name }) => name === 'POST /events');
  assert.equal(request?.spanContext().traceId, traceId);
  for (const span of spans) {
    assert.equal(span.parentSpanContext?.spanId, request?.spanContext().spanId);
    assert.equal(span.attributes['nuncio.event.kind'], 'push');
  }
  const at = ({ port }: typeof subscriber) =>
    spans.find(({ attributes }) => attributes['server.port'] === port)?.attributes;
  assert.equal(at(subscriber)?.['http.response.status_code'], 204);
  assert.equal(at(subscriber)?.['error.type'], undefined);
  assert.equal(at(silent)?.['http.response.status_code'], undefined);
  assert.equal(at(silent)?.['error.type'], 'connection_error');
});

test('an unsampled request’s event stores no trace context, and its attempts are no spans', async (t) => {
  exporter.reset();
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const headers = { traceparent: `00-${traceId}-b7ad6b7169203331-00` };
  await app.request('POST', '/articles', { json: { title: 'x' }, headers });
  await subscriber.waitFor(1);
  const publisher = await createPublisher(server);
  // This event has a recorded span. Its attempt finishes after that of the article.
  await publish(publisher, app.account, ['later']);
  const spans = await attemptSpans(1);
  assert.deepEqual(
    spans.map(({ attributes }) => attributes['nuncio.event.kind']),
    ['push'],
  );
  const { rows } = await sql`
    select kind, traceparent is null as is_null from events where account_id = ${app.account.id} order by position`.execute(
    server.db,
  );
  assert.deepEqual(rows, [
    { kind: 'article.created', is_null: true },
    { kind: 'push', is_null: false },
  ]);
});
