/** Turns of what hosts send over TLS. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { takeHandshakeTurn, takeRecordTurn } from '../../src/egress/tls_turns.ts';

test('addresses take turns at handshakes, one in each turn of the event loop', async () => {
  const verified: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  const ask = (address: string, name: string) => {
    takeHandshakeTurn(address, 443, () => {
      verified.push(name);
      setImmediate(() => verified.push('|'));
      if (name === 'a4') setImmediate(resolve);
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

/** Keeps the processor busy. */
function work(ms: number): void {
  const until = performance.now() + ms;
  while (performance.now() < until);
}

test('records are read while there is time, then by turns of the addresses, few bytes first', async () => {
  const read: string[] = [];
  const ask = (name: string, bytes: number, ms: number) =>
    takeRecordTurn(`192.0.2.${name.charCodeAt(0)}`, 443, bytes, () => {
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
