/**
 * OpenTelemetry spans of attempts. An attempt gets a span if its event was written inside a recorded span, as a child
 * of that span. The attributes follow the semantic conventions of HTTP client spans, without the URL, whose path is
 * often a secret. The server's main thread creates the span when the attempt is over, because the operator's SDK is
 * loaded there.
 */

import { SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import { contextOf } from '../../http/tracing.ts';
import { version } from '../../version.ts';
import type { AttemptError } from './attempt_error.ts';

export interface TracedAttempt {
  /** The event's `traceparent`. */
  parent: string;
  deliveryId: string;
  kind: string;
}

/** What a finished attempt reports for its span. */
export interface AttemptSpan extends TracedAttempt {
  /** Like `https://example.com:8443`. */
  origin: string;
  /** Milliseconds since 1970. */
  startedAt: number;
  endedAt: number;
  status: number | null;
  /** Null if a response arrived, whatever its status. */
  error: AttemptError | null;
}

export function recordAttemptSpan(attempt: AttemptSpan): void {
  const { parent, deliveryId, kind, origin, startedAt, endedAt, status, error } = attempt;
  const { hostname, port, protocol } = new URL(origin);
  const attributes = {
    'http.request.method': 'POST',
    'server.address': hostname,
    'server.port': port === '' ? (protocol === 'https:' ? 443 : 80) : Number(port),
    'nuncio.delivery.id': deliveryId,
    'nuncio.event.kind': kind,
  };
  // The tracer is looked up for each span: an SDK may be registered after this module is loaded.
  const tracer = trace.getTracer('nuncio', version);
  const span = tracer.startSpan(
    'POST',
    { kind: SpanKind.CLIENT, attributes, startTime: startedAt },
    contextOf(parent),
  );
  if (status !== null) span.setAttribute('http.response.status_code', status);
  const isAccepted = error === null && status !== null && status >= 200 && status <= 299;
  if (!isAccepted) {
    const type: AttemptError = error ?? 'unexpected_status';
    span.setAttribute('error.type', type).setStatus({ code: SpanStatusCode.ERROR });
  }
  span.end(endedAt);
}
