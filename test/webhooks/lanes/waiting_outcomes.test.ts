/** Outcomes that wait to be written: how many bytes of responses a statement has, and whose are left out. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import type { AttemptRecord, Outcome } from '../../../src/webhooks/lanes/outcome_policy.ts';
import { WaitingOutcomes } from '../../../src/webhooks/lanes/waiting_outcomes.ts';

const mib = 1_048_576;
/** What the queue reads of a lane. */
const laneOf = (tenant: string, id = 1) => ({ id, tenant: { key: tenant } }) as Lane;

function outcomeOf(sequence: number, bytes: number): Outcome & { attempt: AttemptRecord } {
  const attempt: AttemptRecord = {
    number: 1,
    trigger: 's',
    revision: 1,
    startedAt: 0,
    durationMs: 1,
    firstByteMs: 1,
    status: 200,
    error: null,
    connection: null,
    headers: null,
    body: Buffer.alloc(bytes),
    truncated: false,
  };
  return { lane: 1, sequence, day: '2026-01-01', attempt, retry: null, hadRetry: false, wasManual: false };
}

test('a statement has some MiB of responses, or one that is larger', () => {
  const waiting = new WaitingOutcomes();
  const lane = laneOf('ann');
  for (let sequence = 1; sequence <= 10; sequence += 1) waiting.add(lane, outcomeOf(sequence, mib));
  waiting.add(lane, outcomeOf(11, 10 * mib));
  for (let sequence = 12; sequence <= 20; sequence += 1) waiting.add(lane, outcomeOf(sequence, 0));
  const sizes = [];
  while (waiting.count > 0) sizes.push(waiting.take(5).outcomes.map(({ sequence }) => sequence));
  assert.deepEqual(sizes, [
    [1, 2, 3, 4],
    [5, 6, 7, 8],
    [9, 10, 11],
    [12, 13, 14, 15, 16],
    [17, 18, 19, 20],
  ]);
});

test('attack: responses of one tenant that wait leave room for those of others', () => {
  const waiting = new WaitingOutcomes();
  const hasResponse = (outcome: Outcome) => outcome.attempt?.body !== null;
  const ofAnn = Array.from({ length: 40 }, (_, index) => outcomeOf(index, mib));
  for (const outcome of ofAnn) waiting.add(laneOf('ann'), outcome);
  const kept = ofAnn.filter(hasResponse).length;
  assert.ok(kept >= 10 && kept <= 16, `${kept} MiB`);
  for (const { attempt } of ofAnn.filter((outcome) => !hasResponse(outcome))) {
    assert.equal(attempt.isResponseOmitted, true);
  }
  for (const tenant of ['bob', 'eve']) {
    const outcome = outcomeOf(1, mib);
    waiting.add(laneOf(tenant), outcome);
    assert.ok(hasResponse(outcome), tenant);
  }
  // What is taken, returned and taken again counts once.
  waiting.return(waiting.take(2_000));
  while (waiting.count > 0) waiting.takeOf(({ tenant }) => tenant.key !== 'bob' || waiting.count === 1);
  const later = Array.from({ length: kept }, (_, index) => outcomeOf(index, mib));
  for (const outcome of later) waiting.add(laneOf('ann'), outcome);
  assert.ok(later.every(hasResponse));
});
