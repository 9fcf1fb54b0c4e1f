/** How a subscription's deliveries are doing, as its agent is told when it refreshes: codes, and never what the callback responded. */

import type { AgentStatus } from '../../webhooks/log/agent_status.ts';
import type { AttemptError } from '../../webhooks/sending/attempt_error.ts';

type LastError = 'connection_refused' | 'timeout' | 'tls_error' | 'http_4xx' | 'http_5xx';

const codes: Readonly<Partial<Record<AttemptError, LastError>>> = {
  timeout: 'timeout',
  connect_timeout: 'timeout',
  tls_error: 'tls_error',
  body_too_large: 'http_4xx',
};

export function describeStatus(status: AgentStatus): Record<string, unknown> {
  const { isActive, lastDeliveryAt, lastFailure, failingSince, retryAfterMs } = status;
  return {
    active: isActive,
    lastDeliveryAt: lastDeliveryAt?.toISOString() ?? null,
    lastError: lastFailure === null ? null : codeOf(lastFailure),
    ...(failingSince === null ? {} : { failedSince: failingSince.toISOString() }),
    ...(retryAfterMs === 0 ? {} : { throttled: true, retryAfterMs }),
  };
}

function codeOf({ error, status }: { error: AttemptError; status: number | null }): LastError {
  if (error === 'unexpected_status') return (status ?? 0) >= 500 ? 'http_5xx' : 'http_4xx';
  // Names that do not resolve and refused addresses look like closed ports, so that nothing can be probed.
  return codes[error] ?? 'connection_refused';
}
