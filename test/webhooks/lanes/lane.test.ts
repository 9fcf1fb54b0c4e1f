/** A lane in memory: pauses, rate limits, and held accounts in the lane of an app's own subscription. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AccountHolds, countedAccountsMax } from '../../../src/webhooks/lanes/account_holds.ts';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { decideOutcome } from '../../../src/webhooks/lanes/outcome_policy.ts';
import { unsentResult } from '../../../src/webhooks/sending/exchange.ts';
import { circuitFailures } from '../../../src/webhooks/sending/retry_schedule.ts';
import { add, createLane, deliveryOf, eventOf } from '../../support/webhooks/memory_lane.ts';

test('a rate limit saves no unused rate, except for what makes up for late timers', () => {
  const startsAt = (lane: Lane, now: number) => {
    let count = 0;
    for (; lane.mayStart(now); count += 1) lane.take();
    lane.inFlight = 0;
    return count;
  };
  const slow = createLane(null, { rateLimit: 10 });
  for (let sequence = 1; sequence <= 10; sequence += 1) add(slow, sequence);
  assert.equal(startsAt(slow, 1_000), 1);
  assert.equal(slow.wakeAt(1_000), 1_100);
  assert.equal(startsAt(slow, 60_000), 1);
  const fast = createLane(null, { rateLimit: 60 });
  for (let sequence = 1; sequence <= 10; sequence += 1) add(fast, sequence);
  assert.equal(startsAt(fast, 120_000), 3);
});

test('a hold on an account drops its deliveries only, and returns them', () => {
  const lane = createLane(null);
  for (const [index, account] of ['a', 'b', 'a'].entries()) add(lane, index + 1, account);
  const dropped = lane.holdAccount('a');
  assert.deepEqual(
    dropped.map(({ sequence }) => sequence),
    [1, 3],
  );
  assert.equal(lane.take().sequence, 2);
  assert.equal(lane.waitingCount, 0);
});

test('a read that was running when an account was released puts the account’s deliveries back', () => {
  const lane = createLane(null);
  lane.holdAccount('a');
  lane.beginReading();
  lane.releaseAccount('a');
  assert.equal(lane.isEventHeld(eventOf('a')), true);
  assert.equal(lane.isEventHeld(eventOf('b')), false);
  // The earlier read is still running and may return older deliveries.
  lane.beginReadingRetries();
  assert.equal(lane.isEventHeld(eventOf('a')), true);
  lane.isReading = false;
  lane.isReadingRetries = false;
  lane.beginReading();
  assert.equal(lane.isEventHeld(eventOf('a')), false);
});

test('an account that is released while nothing is read goes on at once', () => {
  const lane = createLane(null);
  lane.holdAccount('a');
  assert.equal(lane.isEventHeld(eventOf('a')), true);
  lane.releaseAccount('a');
  assert.equal(lane.isEventHeld(eventOf('a')), false);
});

test('a hold on an account stops that account’s attempts only, until the table of stops is full', () => {
  const lane = createLane(null);
  const [a, b] = [lane.stoppableFor(eventOf('a')), lane.stoppableFor(eventOf('b'))];
  const before = { a: a.stopCount, b: b.stopCount };
  lane.holdAccount('a');
  assert.ok(a.stopCount > before.a);
  assert.equal(b.stopCount, before.b);
});

test('each hold on an account stops every attempt that began before it, however many accounts there are', () => {
  const lane = createLane(null);
  const accounts = Array.from({ length: countedAccountsMax + 10 }, (_, index) => `account ${index}`);
  const seen = new Map<string, number>();
  // Three rounds fill and clear the table of stops several times.
  for (let round = 0; round < 3; round += 1) {
    for (const account of accounts) {
      const stoppable = lane.stoppableFor(eventOf(account));
      const atStart = stoppable.stopCount;
      assert.ok(atStart >= (seen.get(account) ?? 0), 'a stop count went back');
      lane.holdAccount(account);
      assert.ok(stoppable.stopCount > atStart, 'the hold did not stop an attempt');
      seen.set(account, stoppable.stopCount);
      lane.releaseAccount(account);
    }
  }
});

test('clearing the table of stops raises the count of every account above all earlier ones', () => {
  const holds = new AccountHolds();
  let laneStops = 0;
  const hold = (account: string) => {
    laneStops += holds.hold(account);
  };
  hold('first');
  const first = laneStops + holds.stopCount('first');
  for (let index = 1; index < countedAccountsMax; index += 1) hold(`account ${index}`);
  const highest = laneStops + holds.stopCount(`account ${countedAccountsMax - 1}`);
  assert.equal(laneStops, 0);
  hold('one too many');
  assert.ok(laneStops > 0);
  assert.ok(laneStops + holds.stopCount('first') > Math.max(first, highest));
});

test('new deliveries and retries take turns, and in an ordered lane retries come first', () => {
  const retry = { state: 'pending', attempts: 1, isManual: false } as const;
  const taken = (ordered: boolean) => {
    const lane = createLane('account', { ordered });
    for (const sequence of [1, 2, 3]) lane.addRetry(deliveryOf(sequence, 'account', retry));
    for (const sequence of [11, 12]) add(lane, sequence, 'account');
    return Array.from({ length: 5 }, () => [lane.next.sequence, lane.take().sequence]).map(
      ([next, sequence]) => {
        assert.equal(next, sequence);
        return sequence;
      },
    );
  };
  assert.deepEqual(taken(false), [1, 11, 2, 12, 3]);
  assert.deepEqual(taken(true), [1, 2, 3, 11, 12]);
});

test('what an app’s subscriber refuses does not open its circuit, and what says nothing about an event does', () => {
  const failsOf = (accountId: string | null, status: number, ordered = false) => {
    const lane = createLane(accountId, { ordered, format: 'json' });
    const waiting = deliveryOf(1, 'somebody');
    const result = { ...unsentResult(0, null), isCancelled: false, status };
    const end = { lane, waiting, number: 1, revision: 1, result, now: 0, scheduleSeconds: [5] };
    for (let failure = 0; failure < circuitFailures; failure += 1) {
      const { isRefusal, isNeutral, pauseMs } = decideOutcome(end);
      assert.equal(pauseMs > 0, !isRefusal && failure === circuitFailures - 1);
      if (isRefusal) lane.recordRefusal();
      else lane.recordResult(false, isNeutral);
    }
    assert.equal(lane.failures, circuitFailures, 'all count for the warnings');
    return lane.circuitCount;
  };
  for (const status of [400, 403, 404, 409, 413, 422, 500]) {
    assert.equal(failsOf(null, status), 0);
    assert.equal(failsOf('account', status), circuitFailures);
    assert.equal(failsOf(null, status, true), circuitFailures);
  }
  for (const status of [302, 401, 407, 408, 429, 502, 503, 504])
    assert.equal(failsOf(null, status), circuitFailures);
});

test('failures before an app’s lane was leased may be refusals, unless its circuit was open', () => {
  const loaded = { failures: circuitFailures - 1 };
  const ofApp = createLane(null, { loaded });
  assert.deepEqual([ofApp.failures, ofApp.circuitCount], [circuitFailures - 1, 0]);
  ofApp.recordResult(false, false);
  assert.deepEqual([ofApp.failures, ofApp.circuitCount], [circuitFailures, 1]);
  ofApp.recordResult(true, false);
  assert.deepEqual([ofApp.failures, ofApp.circuitCount], [0, 0]);
  const wasOpen = { failures: circuitFailures + 3, pauseMs: 0, wasPaused: true };
  assert.equal(createLane(null, { loaded: wasOpen }).circuitCount, circuitFailures);
  assert.equal(createLane('account', { loaded }).circuitCount, circuitFailures - 1);
  assert.equal(createLane(null, { loaded, ordered: true }).circuitCount, circuitFailures - 1);
});
