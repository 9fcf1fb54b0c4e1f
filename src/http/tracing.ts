/**
 * OpenTelemetry traces: one span per request, a child of the caller's span if the request has a `traceparent`. This file
 * uses only the OpenTelemetry API. Unless the operator loads an SDK with an exporter, tracing does nothing.
 */

import {
  type Context,
  context,
  propagation,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { version } from '../version.ts';
import { loggedPath } from './logged_path.ts';

interface Traced {
  span: Span;
  within: Context;
}

export function registerTracing(app: FastifyInstance): void {
  const tracer = trace.getTracer('nuncio', version);
  const traced = new WeakMap<FastifyRequest, Traced>();

  app.addHook('onRequest', (request, _reply, done) => {
    if (!isTraced()) return done();
    const parent = propagation.extract(ROOT_CONTEXT, request.headers);
    const route = request.routeOptions.url ?? 'none';
    const span = tracer.startSpan(
      `${request.method} ${route}`,
      {
        kind: SpanKind.SERVER,
        attributes: {
          'http.request.method': request.method,
          'http.route': route,
          'url.path': loggedPath(request.url),
          'nuncio.request_id': request.id,
        },
      },
      parent,
    );
    const within = trace.setSpan(parent, span);
    traced.set(request, { span, within });
    context.with(within, done);
  });
  // The body is read in the socket's context. Restore the context of the request.
  app.addHook('preValidation', (request, _reply, done) => {
    const within = traced.get(request)?.within;
    if (within === undefined) done();
    else context.with(within, done);
  });
  app.addHook('onResponse', (request, reply, done) => {
    const span = traced.get(request)?.span;
    span?.setAttribute('http.response.status_code', reply.statusCode);
    if (reply.statusCode >= 500) span?.setStatus({ code: SpanStatusCode.ERROR });
    span?.end();
    done();
  });
}

/** Whether an SDK is loaded. Without one, the API has a proxy without a tracer behind it. */
function isTraced(): boolean {
  const provider = trace.getTracerProvider() as { getDelegateTracer?: (name: string) => unknown };
  return provider.getDelegateTracer === undefined || provider.getDelegateTracer('nuncio') !== undefined;
}

/**
 * Returns the active span as a `traceparent` header (W3C Trace Context, section 3.2), to store for later work.
 * @returns null when no span is recording
 */
export function activeTraceparent(): string | null {
  const span = trace.getActiveSpan();
  if (span === undefined || !span.isRecording()) return null;
  const { traceId, spanId, traceFlags } = span.spanContext();
  return `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`;
}

/** Returns a context whose spans are children of the given `traceparent`. */
export function contextOf(traceparent: string): Context {
  const [, traceId = '', spanId = '', flags = ''] = traceparent.split('-');
  const parent = { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
  return trace.setSpanContext(ROOT_CONTEXT, parent);
}

/** Runs part of a request in its own span. */
export async function inSpan<T>(name: string, work: () => Promise<T>): Promise<T> {
  return trace.getTracer('nuncio', version).startActiveSpan(name, async (span) => {
    try {
      return await work();
    } catch (error) {
      span.recordException(error as Error);
      span.setStatus({ code: SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  });
}
