import assert from 'node:assert/strict';
import { IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import { test } from 'node:test';
import { rememberCallers } from '../../src/http/overload/caller.ts';

test('a connection that changes its token is another caller, and an unknown token is looked up again', () => {
  const owners = new Map([['Bearer one', 'alice']]);
  let lookups = 0;
  const identify = rememberCallers((authorization) => {
    lookups += 1;
    const owner = owners.get(authorization);
    return owner === undefined ? undefined : { owner, group: null };
  });
  const socket = new Socket();
  const ownerOf = (authorization?: string) => {
    const request = new IncomingMessage(socket);
    if (authorization !== undefined) request.headers.authorization = authorization;
    return identify(request)?.owner;
  };

  assert.deepEqual([ownerOf('Bearer one'), ownerOf('Bearer one'), lookups], ['alice', 'alice', 1]);
  assert.deepEqual([ownerOf(), ownerOf('Bearer two'), lookups], [undefined, undefined, 2]);
  owners.set('Bearer two', 'bob');
  assert.equal(ownerOf('Bearer two'), 'bob');
  assert.equal(ownerOf('Bearer one'), 'alice');
});

test('connections keep no long headers', () => {
  let lookups = 0;
  const identify = rememberCallers(() => {
    lookups += 1;
    return { owner: 'alice', group: null };
  });
  const request = new IncomingMessage(new Socket());
  request.headers.authorization = `${'x '.repeat(4_000)}token`;
  assert.deepEqual([identify(request)?.owner, identify(request)?.owner, lookups], ['alice', 'alice', 2]);
});
