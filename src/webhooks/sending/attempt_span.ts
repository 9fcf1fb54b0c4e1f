/**
 * Traces (OpenTelemetry): a span for each attempt at a delivery whose event was written within a recorded span, a child
 * of that one. By the semantic conventions of HTTP client spans, but without the URL: its path is often a secret. Made
 * when the attempt is over, in the server's own thread: there the operator has loaded an SDK.
 */

import { SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import { contextOf } from '../../http/tracing.ts';
import { version } from '../../version.ts';
import type { AttemptError } from './attempt_error.ts';

export interface TracedAttempt {
  /** The event's, as in the header `traceparent`. */
  parent: string;
  deliveryId: string;
  kind: string;
}

/** What a span tells of an attempt that is over. */
export interface AttemptSpan extends TracedAttempt {
  /** Like `https://example.com:8443`. */
  origin: string;
  /** Milliseconds since 1970. */
  startedAt: number;
  endedAt: number;
  status: number | null;
  /** Null where an answer came, whatever its status. */
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
  // Asked for anew each time: an SDK may be registered later than this file is read.
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
