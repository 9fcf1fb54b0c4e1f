/** Turns of parsing large bodies. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { serverWork, takeBodyTurn } from '../../src/http/body_turns.ts';
import { undivided } from '../../src/shared/owner_turns.ts';

const large = 1_000_000;

/** Keeps the processor busy. */
function work(ms: number): void {
  const until = performance.now() + ms;
  while (performance.now() < until);
}

test('a small body is parsed at once', () => {
  assert.equal(takeBodyTurn(undivided('a'), 10_000), undefined);
});

test('large bodies are parsed by turns of the callers, with rests', async () => {
  const parsed: string[] = [];
  const turns: number[] = [];
  const begunAt = performance.now();
  let isOver = false;
  const count = () => {
    turns.push(parsed.length - turns.reduce((sum, each) => sum + each, 0));
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  const parse = async (owner: string, name: string) => {
    await takeBodyTurn(undivided(owner), large);
    work(20);
    parsed.push(name);
  };
  await Promise.all([parse('a', 'a1'), parse('a', 'a2'), parse('a', 'a3'), parse('b', 'b1')]);
  isOver = true;
  assert.deepEqual(parsed, ['a1', 'b1', 'a2', 'a3']);
  assert.ok(
    turns.every((each) => each <= 1),
    turns.join(' '),
  );
  // Three rests, each as long as what was parsed before it.
  assert.ok(performance.now() - begunAt >= 7 * 20 - 5, `${performance.now() - begunAt} ms`);
});

test('whoever has had little of the time goes first, and work of the server before everybody', async () => {
  const parsed: string[] = [];
  const parse = async (owner: string, ms: number) => {
    await takeBodyTurn(undivided(owner), large);
    work(ms);
    parsed.push(owner);
  };
  const heavy = ['h1', 'h2', 'h3'];
  await Promise.all(heavy.map((owner) => parse(owner, 50)));
  const again = heavy.map((owner) => parse(owner, 1));
  await Promise.all([
    ...again,
    parse('new', 1),
    parse(serverWork.owner, 1),
    parse('newer', 1),
    parse(serverWork.owner, 1),
  ]);
  assert.deepEqual(parsed.slice(0, -heavy.length), [
    ...heavy,
    serverWork.owner,
    serverWork.owner,
    'new',
    'newer',
  ]);
});

test('attack: bodies of an app with many users wait behind those of another app', async () => {
  const parsed: string[] = [];
  const parse = async (owner: string, app: string, ms: number) => {
    await takeBodyTurn({ owner, part: `${owner} ${app}`, group: app }, large);
    work(ms);
    parsed.push(owner);
  };
  await Promise.all([parse('u1', 'crowd', 50), parse('u2', 'crowd', 50), parse('stranger', 'quiet', 1)]);
  assert.deepEqual(parsed, ['u1', 'stranger', 'u2']);
});
