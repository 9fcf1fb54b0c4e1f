/** What agents get: the bytes and signatures of MCP Events, and how deliveries to them are attempted. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decideOutcome } from '../../../src/webhooks/lanes/outcome_policy.ts';
import { buildOccurrence, signedAgentLines } from '../../../src/webhooks/sending/agent_message.ts';
import { agentScheduleSeconds, policyOf } from '../../../src/webhooks/sending/delivery_policy.ts';
import type { EventContent } from '../../../src/webhooks/sending/delivery_request.ts';
import { type ExchangeResult, unsentResult } from '../../../src/webhooks/sending/exchange.ts';
import { circuitPause, pauseAfter } from '../../../src/webhooks/sending/retry_schedule.ts';
import { createSigningKeys } from '../../../src/webhooks/sending/secret_keys.ts';
import { agentSecret, otherAgentSecret } from '../../support/webhooks/agents.ts';
import { createLane } from '../../support/webhooks/memory_lane.ts';

const now = 1_795_392_000_000;
const event: EventContent = {
  id: 'evt_1',
  kind: 'article.published',
  version: null,
  accountId: null,
  accountExternalId: null,
  body: Buffer.from('{"id":"a1"}'),
  createdAt: Date.parse('2026-11-23T00:00:00Z'),
  traceparent: null,
};
const terms = {
  ...{ key: 'sub_1', name: 'article.published', webhookId: 'event' as const },
  cursorAt: () => 'c1',
};
const keysOf = (secret: string, previous: { secret: string; until: Date } | null = null) =>
  createSigningKeys({ secret, previous }, 'standard');

function linesOf(lines: string): Record<string, string> {
  return Object.fromEntries(
    lines
      .trimEnd()
      .split('\r\n')
      .map((line) => [line.slice(0, line.indexOf(': ')), line.slice(line.indexOf(': ') + 2)]),
  );
}

test('agents 68: an occurrence has the signature of the vectors for both secrets', () => {
  const signatures = {
    [agentSecret]: 'v1,1qOllmYWx1FKJV8zItofiscoODtic8bfNFy9v97jT1I=',
    [otherAgentSecret]: 'v1,NgaRL+iIZaW5izflXPTt+p1NW/cVaY0HdxwRP4aHjkE=',
  };
  for (const [secret, signature] of Object.entries(signatures)) {
    const { lines, body, id } = buildOccurrence(terms, keysOf(secret), event, { sequence: 1, now });
    assert.equal(
      body.toString(),
      '{"eventId":"evt_1","name":"article.published","timestamp":"2026-11-23T00:00:00.000Z","data":{"id":"a1"},"cursor":"c1"}',
    );
    assert.equal(id, 'evt_1');
    // The vector's time has no milliseconds.
    const given = Buffer.from(body.toString().replace('.000Z', 'Z'));
    const signed = linesOf(signedAgentLines('sub_1', keysOf(secret), { id, body: given, now }));
    assert.equal(signed['webhook-signature'], signature);
    assert.deepEqual(linesOf(lines)['webhook-id'], 'evt_1');
    assert.equal(linesOf(lines)['webhook-timestamp'], '1795392000');
    assert.equal(linesOf(lines)['x-mcp-subscription-id'], 'sub_1');
    assert.equal(linesOf(lines)['content-type'], 'application/json');
  }
});

test('agents 69: a control message has the signature of the vector', () => {
  const id = 'msg_terminated_0123456789abcdef01234567';
  const error = { code: -32_012, message: 'Forbidden', data: { reason: 'access_revoked' } };
  const body = Buffer.from(JSON.stringify({ type: 'terminated', error }));
  const lines = linesOf(signedAgentLines('sub_1', keysOf(agentSecret), { id, body, now }));
  assert.equal(lines['webhook-signature'], 'v1,EUzdesQPy2e1P79fchmr75AvlNovenHypFOctr9/7U0=');
  assert.equal(lines['webhook-id'], id);
});

test('agents 33: both secrets sign during the overlap, the newest first', () => {
  const sign = (until: number) => {
    const keys = keysOf(agentSecret, { secret: otherAgentSecret, until: new Date(until) });
    const { lines } = buildOccurrence(terms, keys, event, { sequence: 1, now });
    return linesOf(lines)['webhook-signature']?.split(' ');
  };
  const [newest, older, ...rest] = sign(now + 1) ?? [];
  assert.deepEqual(sign(now), [newest]);
  assert.ok(older?.startsWith('v1,') && older !== newest);
  assert.deepEqual(rest, []);
});

test('agents 44: each attempt has the same bytes, and a timestamp and signature of its own', () => {
  const build = (at: number) => buildOccurrence(terms, keysOf(agentSecret), event, { sequence: 1, now: at });
  const [first, second] = [build(now), build(now + 600_000)];
  assert.deepEqual(first.body, second.body);
  const [one, other] = [linesOf(first.lines), linesOf(second.lines)];
  assert.equal(one['webhook-id'], other['webhook-id']);
  assert.equal(Number(other['webhook-timestamp']) - Number(one['webhook-timestamp']), 600);
  assert.notEqual(one['webhook-signature'], other['webhook-signature']);
});

test('agents 61: a setting gives each message an id, the same for its attempts', () => {
  const idOf = (key: string, eventId: string, at: number) => {
    const message = { ...terms, key, webhookId: 'message' as const };
    const { id, lines, body } = buildOccurrence(
      message,
      keysOf(agentSecret),
      { ...event, id: eventId },
      {
        ...{ sequence: 1, now: at },
      },
    );
    assert.equal(linesOf(lines)['webhook-id'], id);
    assert.equal(JSON.parse(body.toString()).eventId, eventId);
    const signed = linesOf(signedAgentLines(key, keysOf(agentSecret), { id, body, now: at }));
    assert.equal(linesOf(lines)['webhook-signature'], signed['webhook-signature']);
    return id;
  };
  const id = idOf('sub_1', 'evt_1', now);
  assert.match(id, /^msg_[0-9a-f]{24}$/);
  assert.equal(idOf('sub_1', 'evt_1', now + 30_000), id);
  assert.notEqual(idOf('sub_2', 'evt_1', now), id);
  assert.notEqual(idOf('sub_1', 'evt_2', now), id);
});

test('agents 46: there are four attempts, with pauses that vary by a fifth in both directions', () => {
  const { jitter } = policyOf('agent');
  const pause = (attempt: number, random: number) =>
    pauseAfter(agentScheduleSeconds, attempt, null, random, jitter);
  assert.deepEqual([pause(1, 0), pause(1, 0.5), pause(1, 1)], [24_000, 30_000, 36_000]);
  assert.deepEqual([pause(2, 0.5), pause(3, 0.5), pause(4, 0.5)], [120_000, 600_000, null]);
  // Other subscribers as before: only ever longer.
  assert.equal(policyOf('json').jitter(0), 1);
});

test('agents 46: 410 and 413 end the delivery and not the subscription, elsewhere 410 disables', () => {
  const decide = (format: 'agent' | 'json', status: number | null, error: 'body_too_large' | null = null) => {
    const lane = createLane('account', { format });
    const waiting = { sequence: 1, day: '2026-11-23', position: 1, event, retry: null };
    const result = { ...unsentResult(0, error), isCancelled: false, status } as ExchangeResult;
    const end = { lane, waiting, number: 1, revision: 1, result, now, scheduleSeconds: [30, 120, 600] };
    const { outcome, isGone } = decideOutcome(end);
    return [outcome.retry?.state, isGone];
  };
  assert.deepEqual(decide('agent', 410), ['failed', false]);
  assert.deepEqual(decide('agent', 413), ['failed', false]);
  assert.deepEqual(decide('agent', null, 'body_too_large'), ['failed', false]);
  for (const status of [301, 400, 401, 404, 500, 503])
    assert.deepEqual(decide('agent', status), ['pending', false]);
  assert.deepEqual(decide('json', 410), ['pending', true]);
  assert.deepEqual(decide('json', 413), ['pending', false]);
});

test('agents 48: a callback that only fails gets more than a hundred attempts an hour', () => {
  const pauses = Array.from({ length: 110 }, (_, failures) =>
    circuitPause(failures, policyOf('agent').probePauseMsMax),
  );
  assert.ok(pauses.reduce((sum, pause) => sum + pause, 0) < 3_600_000);
});
