/**
 * Traces (OpenTelemetry): a span for each attempt at a delivery whose event was written within a recorded span, a child
 * of that one. By the semantic conventions of HTTP client spans, but without the URL: its path is often a secret.
 */

import { type Span, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import { contextOf } from '../http/tracing.ts';
import { version } from '../version.ts';
import type { AttemptError } from './attempt_error.ts';

export interface TracedAttempt {
  /** The event's, as in the header `traceparent`. */
  parent: string;
  deliveryId: string;
  kind: string;
}

/** @param origin like `https://example.com:8443` */
export function startAttemptSpan({ parent, deliveryId, kind }: TracedAttempt, origin: string): Span {
  const { hostname, port, protocol } = new URL(origin);
  const attributes = {
    'http.request.method': 'POST',
    'server.address': hostname,
    'server.port': port === '' ? (protocol === 'https:' ? 443 : 80) : Number(port),
    'nuncio.delivery.id': deliveryId,
    'nuncio.event.kind': kind,
  };
  // Asked for anew each time: an SDK may be registered later than this file is read.
  const tracer = trace.getTracer('nuncio', version);
  return tracer.startSpan('POST', { kind: SpanKind.CLIENT, attributes }, contextOf(parent));
}

/** @param error null where an answer came, whatever its status */
export function endAttemptSpan(span: Span, status: number | null, error: AttemptError | null): void {
  if (status !== null) span.setAttribute('http.response.status_code', status);
  const isAccepted = error === null && status !== null && status >= 200 && status <= 299;
  if (!isAccepted) {
    const type: AttemptError = error ?? 'unexpected_status';
    span.setAttribute('error.type', type).setStatus({ code: SpanStatusCode.ERROR });
  }
  span.end();
}
