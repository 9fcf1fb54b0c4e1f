/** Events in memory between publishing and fan-out. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { EventCache } from '../../../src/webhooks/fan_out/event_cache.ts';
import { packEvents } from '../../../src/webhooks/fan_out/published_batch.ts';

const createdAt = new Date();

/** A batch of events that were published together. */
function batchOf(positions: readonly number[], bytes = 100) {
  return packEvents(
    positions.map((position) => ({
      id: `event-${position}`,
      accountId: 'account',
      kind: 'push',
      body: Buffer.alloc(bytes, `${position % 10}`),
      day: '2026-11-22',
      position,
      createdAt,
      version: null,
      traceparent: null,
      accountExternalId: null,
    })),
  );
}

for (const count of [1, 8, 9, 1_000]) {
  test(`the cache finds each of ${count} events published together and no other, before and after they are taken`, () => {
    const cache = new EventCache();
    // Other publishers took the positions in between.
    const positions = Array.from({ length: count }, (_, index) => 10 + index * 2);
    cache.putPublished(batchOf(positions));
    const check = () => {
      for (const position of positions) {
        assert.equal(cache.get(position)?.id, `event-${position}`);
        assert.equal(cache.get(position)?.body[0], `${position % 10}`.charCodeAt(0));
        assert.equal(cache.get(position + 1), undefined);
      }
      assert.equal(cache.get(8), undefined);
    };
    check();
    for (const position of positions) cache.keep(position);
    cache.release(positions);
    check();
    cache.drop(positions[0] as number);
    assert.equal(cache.get(positions[0] as number), undefined);
  });

  test(`the cache removes ${count} events published together when all are taken and none is kept`, () => {
    const cache = new EventCache();
    const positions = Array.from({ length: count }, (_, index) => 10 + index);
    const [first, ...others] = positions as [number, ...number[]];
    cache.putPublished(batchOf(positions));
    cache.release(others);
    assert.equal(cache.get(first)?.id, `event-${first}`);
    cache.release([first]);
    for (const position of positions) assert.equal(cache.get(position), undefined);
  });
}

test('the cache evicts the oldest kept events and no waiting ones', () => {
  const cache = new EventCache();
  const bytes = 100_000;
  cache.putPublished(batchOf([1], bytes));
  for (let position = 2; position <= 400; position += 1) {
    cache.putPublished(batchOf([position], bytes));
    cache.keep(position);
    cache.release([position]);
  }
  assert.equal(cache.get(1)?.id, 'event-1');
  assert.equal(cache.get(2), undefined);
  assert.equal(cache.get(400)?.id, 'event-400');
});

test('the cache omits new events when it is full of waiting ones', () => {
  const cache = new EventCache();
  for (let position = 1; position <= 800; position += 1) cache.putPublished(batchOf([position], 100_000));
  assert.equal(cache.get(1)?.id, 'event-1');
  assert.equal(cache.get(800), undefined);
});
