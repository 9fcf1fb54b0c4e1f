/** Turns of what hosts send over TLS. */

import assert from 'node:assert/strict';
import { Socket } from 'node:net';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { waitForEvent } from '../../src/egress/socket_event.ts';
import { takeHandshakeTurn, takeRecordTurn } from '../../src/egress/tls_turns.ts';

const peerOf = (address: string, tenant: string | null = null) => ({ address, port: 443, user: { tenant } });

test('addresses take turns at handshakes, one in each turn of the event loop', async () => {
  const verified: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  const ask = (address: string, name: string, tenant: string | null = null) => {
    takeHandshakeTurn(peerOf(address, tenant), () => {
      verified.push(name);
      setImmediate(() => verified.push('|'));
      if (name === 'a4') setImmediate(resolve);
      return true;
    });
  };
  for (const name of ['a1', 'a2', 'a3', 'a4']) ask('192.0.2.1', name);
  ask('192.0.2.2', 'b1');
  ask('2001:db8::1', 'c1');
  // The same network of one site.
  ask('2001:db8:0:1::2', 'c2');
  await promise;
  assert.equal(verified.join(''), 'a1|b1|c1|a2|c2|a3|a4|');
});

test('attack: a tenant with many handshakes at one address leaves each second turn to another tenant', async () => {
  const verified: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  const ask = (tenant: string, name: string) =>
    takeHandshakeTurn(peerOf('192.0.2.9', tenant), () => {
      verified.push(name);
      if (name === 'a5') resolve();
      return true;
    });
  for (const name of ['a1', 'a2', 'a3', 'a4', 'a5']) ask('a', name);
  for (const name of ['b1', 'b2']) ask('b', name);
  await promise;
  assert.deepEqual(verified, ['a1', 'b1', 'a2', 'b2', 'a3', 'a4', 'a5']);
});

test('attack: a tenant whose names lead to many addresses leaves each second turn to another tenant', async () => {
  const verified: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  const ask = (tenant: string, address: string, name: string) =>
    takeHandshakeTurn(peerOf(address, tenant), () => {
      verified.push(name);
      if (name === 'a5') resolve();
      return true;
    });
  for (const number of [1, 2, 3, 4, 5]) ask('a', `192.0.2.${number}`, `a${number}`);
  for (const name of ['b1', 'b2', 'b3']) ask('b', '192.0.2.9', name);
  await promise;
  assert.deepEqual(verified, ['a1', 'b1', 'a2', 'b2', 'a3', 'b3', 'a4', 'a5']);
});

test('handshakes that nobody wants any more take no turn', async () => {
  const verified: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  for (let count = 0; count < 30; count += 1) {
    takeHandshakeTurn(peerOf('192.0.2.9', 'a'), () => {
      verified.push('given up');
      return false;
    });
  }
  takeHandshakeTurn(peerOf('192.0.2.9', 'a'), () => {
    verified.push('verified');
    setImmediate(() => verified.push('|'));
    setImmediate(resolve);
    return true;
  });
  setImmediate(() => verified.push('|'));
  await promise;
  assert.equal(verified.indexOf('|'), 31, verified.join(' '));
});

/** Keeps the processor busy. */
function work(ms: number): void {
  const until = performance.now() + ms;
  while (performance.now() < until);
}

test('records are read while there is time, then by turns of the addresses, few bytes first', async () => {
  const read: string[] = [];
  const ask = (name: string, bytes: number, ms: number) =>
    takeRecordTurn(peerOf(`192.0.2.${name.charCodeAt(0)}`), bytes, () => {
      read.push(name);
      work(ms);
    });
  assert.ok(ask('a1', 4_096, 6));
  for (const name of ['a2', 'a3', 'b1']) assert.ok(!ask(name, 4_096, 6));
  for (const name of ['c1', 'd1']) assert.ok(!ask(name, 1_024, 0));
  assert.deepEqual(read, ['a1']);
  const inTurns: string[][] = [];
  for (let from = 1; from < 6; from = read.length) {
    await nextTurn();
    inTurns.push(read.slice(from));
  }
  // On a slow machine the turn may end before d1.
  assert.ok(['c1 d1 a2 b1 a3', 'c1 a2 d1 b1 a3'].includes(read.slice(1).join(' ')), read.join(' '));
  for (const names of inTurns) assert.ok(names.filter((name) => /[ab]/.test(name)).length <= 1, `${names}`);
  await nextTurn();
  await nextTurn();
  assert.ok(ask('a5', 4_096, 0), 'a turn without records resets the time');
});

test('the time for which a handshake waits for its turn does not count for its timeout', async () => {
  const startedAt = performance.now();
  await assert.rejects(
    waitForEvent(
      new Socket(),
      'secureConnect',
      20,
      () => new Error('late'),
      () => 100,
    ),
    { message: 'late' },
  );
  assert.ok(performance.now() - startedAt >= 120);
});
