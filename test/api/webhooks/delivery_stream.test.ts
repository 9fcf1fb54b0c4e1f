/** Limits of responses that stay open, such as the live log: for a token, for an account or app, for an app of an account, and for a node. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DeliveryStreams } from '../../../src/api/webhooks/delivery_stream.ts';
import { StreamSlots } from '../../../src/http/stream_slots.ts';

/** Opens a stream of an app that waits for its first deliveries. @returns the status of a refusal */
function opener(): (tokenId: string, owner: string, app?: string) => Promise<number | undefined> {
  const streams = new DeliveryStreams(new StreamSlots({ addHook: () => {} } as never));
  return async (tokenId, owner, clientId = owner) => {
    const poll = () => new Promise<never>(() => {});
    const refused = streams
      .send({} as never, {} as never, { poll, tokenId, owner, tenant: owner, clientId })
      .then(
        () => undefined,
        ({ status }: { status: number }) => status,
      );
    return Promise.race([refused, new Promise<undefined>((resolve) => setImmediate(resolve, undefined))]);
  };
}

test('one account or app cannot take all streams of a node with many tokens', async () => {
  const open = opener();
  const openMany = (count: number, owner: string) =>
    Promise.all(Array.from({ length: count }, (_none, token) => open(`${owner} ${token}`, owner)));
  assert.deepEqual(await openMany(25, 'greedy'), [...Array(20).fill(undefined), ...Array(5).fill(429)]);
  for (let other = 1; other < 10; other += 1) {
    assert.deepEqual(await openMany(20, `other ${other}`), Array(20).fill(undefined));
  }
  // Whoever has fewer than the others by two gets a place of theirs, until the shares are equal.
  assert.deepEqual(await openMany(20, 'late'), [...Array(18).fill(undefined), 503, 503]);
  assert.equal(await open('another', 'other 1'), 503);
});

test('one token cannot take all streams of its account', async () => {
  const open = opener();
  for (let stream = 0; stream < 5; stream += 1) assert.equal(await open('one', 'account'), undefined);
  assert.equal(await open('one', 'account'), 429);
  assert.equal(await open('two', 'account'), undefined);
});

test('one app cannot take all streams that its user may have', async () => {
  const open = opener();
  for (let stream = 0; stream < 20; stream += 1)
    assert.equal(await open(`greedy ${stream}`, 'user', 'greedy app'), undefined);
  // Another app of the user takes places of the first one, until both have as many.
  for (let stream = 0; stream < 10; stream += 1)
    assert.equal(await open(`other ${stream}`, 'user', 'other app'), undefined);
  for (const app of ['other app', 'greedy app']) assert.equal(await open(`${app} more`, 'user', app), 429);
});

test('attack: accounts with very many apps end no streams of the users of another app', async () => {
  const streams = new StreamSlots({ addHook: () => {} } as never);
  const take = (owner: string, clientId: string) =>
    streams.take({ tokenId: `${owner} ${clientId}`, owner, tenant: owner, clientId }).signal;
  const users = Array.from({ length: 60 }, (_none, user) => take(`user ${user}`, 'popular'));
  const refused: unknown[] = [];
  for (let app = 0; app < 20; app += 1) {
    for (let account = 0; account < 10; account += 1) {
      try {
        take(`greedy ${account}`, `app ${app} of ${account}`);
      } catch (error) {
        refused.push((error as { status?: number }).status);
      }
    }
  }
  assert.deepEqual(
    users.filter(({ aborted }) => aborted),
    [],
  );
  assert.deepEqual(refused, Array(60).fill(503));
  // A new user of the app gets a place of an account that has many.
  take('new user', 'popular');
});

test('what cannot be resumed has shares for the apps of an account', () => {
  const limits = { token: 20, owner: 92, app: 200, node: 400 };
  const slots = new StreamSlots({ addHook: () => {} } as never, { limits, areResumable: false });
  const countOf = (clientId: string) => {
    let count = 0;
    try {
      for (; count < 100; count += 1)
        slots.take({ tokenId: `${clientId} ${count}`, owner: 'user', tenant: 'user', clientId });
    } catch {}
    return count;
  };
  assert.deepEqual(['first', 'second', 'third'].map(countOf), [40, 20, 10]);
});

test('an app with many users can take half of the streams of a node', async () => {
  const open = opener();
  for (let user = 0; user < 5; user += 1) {
    for (let stream = 0; stream < 20; stream += 1)
      assert.equal(await open(`${user} ${stream}`, `user ${user}`, 'app'), undefined);
  }
  // Another user takes a place of the five, and the app has no more than before.
  for (let stream = 0; stream < 16; stream += 1)
    assert.equal(await open(`6 ${stream}`, 'user 6', 'app'), undefined);
  assert.equal(await open('6 more', 'user 6', 'app'), 429);
  for (let stream = 0; stream < 100; stream += 1)
    assert.equal(await open(`other ${stream}`, `another ${stream}`, 'another app'), undefined);
  assert.equal(await open('other', 'another', 'another app'), 429);
});
