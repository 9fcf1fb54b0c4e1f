/** What an agent learns of attempts that failed. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describeStatus } from '../../../src/mcp/events/delivery_status.ts';
import type { AgentStatus } from '../../../src/webhooks/log/agent_status.ts';
import { type AttemptError, attemptErrors } from '../../../src/webhooks/sending/attempt_error.ts';

const healthy = {
  isActive: true,
  lastDeliveryAt: null,
  lastFailure: null,
  failingSince: null,
  retryAfterMs: 0,
};

function lastError(error: AttemptError, status: number | null = null): unknown {
  const given: AgentStatus = { ...healthy, lastFailure: { error, status } };
  return describeStatus(given).lastError;
}

test('agents 37: each failure has a code, which tells nothing of private addresses', () => {
  assert.equal(lastError('timeout'), 'timeout');
  assert.equal(lastError('connect_timeout'), 'timeout');
  assert.equal(lastError('tls_error'), 'tls_error');
  assert.equal(lastError('body_too_large'), 'http_4xx');
  assert.equal(lastError('unexpected_status', 302), 'http_4xx');
  assert.equal(lastError('unexpected_status', 499), 'http_4xx');
  assert.equal(lastError('unexpected_status', 500), 'http_5xx');
  const codes = ['connection_refused', 'timeout', 'tls_error', 'http_4xx', 'http_5xx'];
  for (const error of Object.keys(attemptErrors) as AttemptError[]) {
    assert.ok(codes.includes(String(lastError(error))), error);
  }
  for (const error of ['dns_error', 'address_refused', 'connect_error'] as const) {
    assert.equal(lastError(error), 'connection_refused', error);
  }
  assert.equal(describeStatus(healthy).lastError, null);
});
