import assert from 'node:assert/strict';
import { IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import { test } from 'node:test';
import { rememberCallers } from '../../src/http/overload/caller.ts';
import { undivided } from '../../src/shared/owner_turns.ts';

test('a token is looked up once, on any connection, and an unknown one again', () => {
  const owners = new Map([['one', 'alice']]);
  let lookups = 0;
  const identify = rememberCallers((token) => {
    lookups += 1;
    const owner = owners.get(token);
    return owner === undefined ? undefined : { ...undivided(owner), group: null };
  });
  const ownerOf = (authorization?: string) => {
    const request = new IncomingMessage(new Socket());
    if (authorization !== undefined) request.headers.authorization = authorization;
    return identify(request)?.owner;
  };

  assert.deepEqual([ownerOf('Bearer one'), ownerOf('Bearer one'), lookups], ['alice', 'alice', 1]);
  assert.deepEqual([ownerOf(), ownerOf('Bearer two'), lookups], [undefined, undefined, 2]);
  owners.set('two', 'bob');
  assert.equal(ownerOf('Bearer two'), 'bob');
  assert.equal(ownerOf('Bearer one'), 'alice');
  assert.equal(lookups, 3);
});

test('no long headers are kept', () => {
  let lookups = 0;
  const identify = rememberCallers(() => {
    lookups += 1;
    return { ...undivided('alice'), group: null };
  });
  const request = new IncomingMessage(new Socket());
  request.headers.authorization = `${'x '.repeat(4_000)}token`;
  assert.deepEqual([identify(request)?.owner, identify(request)?.owner, lookups], ['alice', 'alice', 2]);
});

test('a caller that varies its header has one entry', () => {
  let lookups = 0;
  const identify = rememberCallers((token) => {
    lookups += 1;
    return { ...undivided(token), group: null };
  });
  const send = (authorization: string) => {
    const request = new IncomingMessage(new Socket());
    request.headers.authorization = authorization;
    return identify(request)?.owner;
  };
  send('Bearer quiet');
  for (let number = 0; number < 3_000; number += 1) {
    assert.equal(send(`${'x'.repeat(1_000)}${number} loud`), 'loud');
  }
  assert.equal(send('Bearer quiet'), 'quiet');
  assert.equal(lookups, 2);
});

test('any number of tokens is known, and some of the last ones are remembered', () => {
  let lookups = 0;
  const identify = rememberCallers((token) => {
    lookups += 1;
    return { ...undivided(token), group: null };
  });
  const ownerOf = (number: number) => {
    const request = new IncomingMessage(new Socket());
    request.headers.authorization = `Bearer ${String(number).padStart(1_000, '0')}`;
    return identify(request)?.owner;
  };
  for (let number = 0; number < 3_000; number += 1) {
    assert.equal(ownerOf(number), String(number).padStart(1_000, '0'));
  }
  assert.equal(lookups, 3_000);
  ownerOf(2_999);
  assert.equal(lookups, 3_000, 'the last one is remembered');
  ownerOf(0);
  assert.equal(lookups, 3_001, 'the first one is not');
});
