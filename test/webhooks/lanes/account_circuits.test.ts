/** An account whose deliveries fail is set aside in the lane of an app's own subscription, and those of other accounts continue. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AccountCircuits } from '../../../src/webhooks/lanes/account_circuits.ts';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { circuitFailures } from '../../../src/webhooks/sending/retry_schedule.ts';
import { add, createLane, deliveryOf } from '../../support/webhooks/memory_lane.ts';

const now = 10_000;

/** Attempts of an account fail, one after the other. */
function fail(lane: Lane, account: string, count: number, at = now): void {
  for (let failure = 0; failure < count; failure += 1)
    lane.recordResult(deliveryOf(1, account), false, false, at, 0);
}

const sequencesOf = (aside: ReturnType<Lane['setAside']>) => aside.map(({ delivery }) => delivery.sequence);

test('an account that fails three times in a row is set aside, and the others are not', () => {
  const lane = createLane(null);
  for (const [index, account] of ['a', 'b', 'a', 'b'].entries()) add(lane, index + 1, account);
  fail(lane, 'a', 2);
  assert.deepEqual(lane.setAside(now), []);
  fail(lane, 'a', 1);
  assert.deepEqual(
    lane.setAside(now).map(({ delivery, dueMs }) => [delivery.sequence, dueMs]),
    [
      [1, 1_000],
      [3, 1_000],
    ],
  );
  assert.equal(lane.next.sequence, 2);
  assert.equal(lane.circuit.isOpen, false);
});

test('a success closes the circuit of the account, and between two failures keeps it closed', () => {
  const lane = createLane(null);
  add(lane, 1, 'a');
  fail(lane, 'a', 2);
  lane.recordResult(deliveryOf(1, 'a'), true, false, now, 0);
  fail(lane, 'a', 2);
  assert.deepEqual(lane.setAside(now), []);
  fail(lane, 'a', 1);
  lane.recordResult(deliveryOf(1, 'a'), true, false, now, 0);
  assert.deepEqual(lane.setAside(now), []);
});

test('after the pause one delivery of the account is tried, and the others wait for its result', () => {
  const lane = createLane(null);
  fail(lane, 'a', 3);
  for (const sequence of [1, 2, 3]) add(lane, sequence, 'a');
  assert.deepEqual(lane.setAside(now + 1_000), []);
  const probe = lane.take();
  assert.deepEqual(sequencesOf(lane.setAside(now + 1_000)), [2, 3]);
  lane.end(probe);
  lane.recordResult(probe, false, false, now + 1_100, 0);
  add(lane, 4, 'a');
  // The pause is twice as long now.
  assert.deepEqual(sequencesOf(lane.setAside(now + 3_099)), [4]);
  add(lane, 5, 'a');
  assert.deepEqual(lane.setAside(now + 3_100), []);
});

test('a delivery of the account that is resent by hand does not wait', () => {
  const lane = createLane(null);
  fail(lane, 'a', 3);
  add(lane, 1, 'a');
  lane.addRetry(deliveryOf(2, 'a', { state: 'failed', attempts: 3, isManual: true }));
  assert.deepEqual(lane.setAside(now), []);
  assert.equal(lane.take().sequence, 2);
  assert.deepEqual(sequencesOf(lane.setAside(now)), [1]);
});

test('an account that fails pauses itself for as long as the subscriber asks, and not the lane', () => {
  const lane = createLane(null);
  add(lane, 1, 'a');
  fail(lane, 'a', 3);
  lane.recordResult(deliveryOf(2, 'a'), false, false, now + 1_000, 600_000);
  assert.equal(lane.isOfAccount(deliveryOf(3, 'a')), true);
  assert.equal(lane.isOfAccount(deliveryOf(3, 'b')), false);
  assert.deepEqual(
    lane.setAside(now + 1_000).map(({ dueMs }) => dueMs),
    [600_000],
  );
});

test('no account alone opens the circuit of the lane, and a dead subscriber of several accounts does', () => {
  const lane = createLane(null);
  fail(lane, 'a', 50);
  assert.equal(lane.circuit.isOpen, false);
  assert.equal(lane.circuit.failures, 50, 'all count for warnings that the subscription fails');
  fail(lane, 'b', 3);
  fail(lane, 'c', 3);
  assert.equal(lane.circuit.isOpen, false);
  fail(lane, 'd', 1);
  assert.equal(lane.circuit.count, circuitFailures);
  assert.equal(lane.circuit.isOpen, true);
  // From here on every failure counts, so that a dead subscriber gets one probe a minute.
  fail(lane, 'a', 1);
  assert.equal(lane.circuit.count, circuitFailures + 1);
});

test('the probe of the lane is a delivery of an account that does not fail, if one waits', () => {
  const lane = createLane(null);
  for (const account of ['a', 'b', 'c', 'd']) fail(lane, account, 3);
  assert.equal(lane.circuit.isOpen, true);
  for (const [index, account] of ['a', 'b', 'other', 'a'].entries()) add(lane, index + 1, account);
  const later = now + 600_000;
  assert.deepEqual(sequencesOf(lane.setAside(later)), [1, 4, 2]);
  assert.equal(lane.next.sequence, 3);
  lane.recordResult(lane.take(), true, false, later, 0);
  assert.equal(lane.circuit.isOpen, false);
  // Without another account, one that fails is the probe.
  fail(lane, 'other', 3, later);
  for (const account of ['e', 'f', 'g']) fail(lane, account, 3, later);
  add(lane, 5, 'a');
  assert.deepEqual(lane.setAside(later), []);
});

test('lanes of one account, and those in order, have no circuits of accounts', () => {
  for (const lane of [createLane('a'), createLane(null, { ordered: true })]) {
    add(lane, 1, 'a');
    fail(lane, 'a', circuitFailures);
    assert.deepEqual(lane.setAside(now), []);
    assert.equal(lane.circuit.isOpen, true);
  }
});

test('a node that takes a lane over does not hold earlier failures of accounts against the lane', () => {
  assert.equal(createLane(null, { loaded: { failures: 50 } }).circuit.isOpen, false);
  assert.equal(createLane(null, { loaded: { failures: 50, pauseMs: 1_000 } }).circuit.isOpen, true);
  assert.equal(createLane('a', { loaded: { failures: 50 } }).circuit.isOpen, true);
});

test('of very many deliveries that are set aside, two thousand are due after each pause', () => {
  const circuits = new AccountCircuits();
  for (let failure = 0; failure < 3; failure += 1) circuits.fail('a', now, 0);
  const dueMs = Array.from({ length: 4_500 }, () => circuits.setAside('a', now));
  assert.deepEqual([dueMs[0], dueMs[1_999], dueMs[2_000], dueMs[4_499]], [1_000, 1_000, 2_000, 3_000]);
});

test('accounts that fail are remembered up to a number', () => {
  const circuits = new AccountCircuits();
  for (let account = 0; account < 1_001; account += 1)
    for (let failure = 0; failure < 3; failure += 1) circuits.fail(String(account), now, 0);
  assert.deepEqual(
    ['0', '1', '1000'].map((account) => circuits.isOpen(account)),
    [false, true, true],
  );
});
