/** What code that works for a request knows of it. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { test } from 'node:test';
import Fastify from 'fastify';
import { currentUser, inTurnOf } from '../../src/database/connection_user.ts';
import { currentSignal, nameConnectionUsers } from '../../src/http/overload/connection_users.ts';
import { LimitedWork, NoTurnError } from '../../src/shared/limited_work.ts';
import { undivided } from '../../src/shared/owner_turns.ts';

for (const [where, within] of [
  ['', (wait: () => Promise<void>) => wait()],
  [' within another turn', (wait: () => Promise<void>) => inTurnOf('lists', () => [], wait)],
] as const) {
  test(`a client that disconnects ends the wait of its request for a turn${where}`, async (t) => {
    const work = new LimitedWork(1);
    const ended = Promise.withResolvers<void>();
    const held = work.run('other', () => ended.promise);
    const began = Promise.withResolvers<void>();
    const result = Promise.withResolvers<unknown>();
    const app = Fastify();
    t.after(() => app.close());
    app.decorateRequest('place', null);
    nameConnectionUsers(app, () => undivided('caller'));
    app.get('/', async () => {
      const waiting = within(() => work.run('caller', async () => {}, undefined, currentSignal()));
      waiting.then(result.resolve, result.resolve);
      began.resolve();
      await waiting;
    });
    const { port } = new URL(await app.listen({ port: 0, host: '127.0.0.1' }));
    const socket = connect({ port: Number(port), host: '127.0.0.1' });
    await once(socket, 'connect');
    socket.write('GET / HTTP/1.1\r\nhost: a\r\n\r\n');
    await began.promise;
    assert.equal(work.waitingOf('caller'), 1);
    socket.destroy();
    assert.ok((await result.promise) instanceof NoTurnError);
    assert.equal(work.waitingOf('caller'), 0);
    ended.resolve();
    await held;
    assert.equal(currentSignal(), undefined);
  });
}

test('the database and turns know the app of a request, also within a turn', async (t) => {
  const app = Fastify();
  t.after(() => app.close());
  app.decorateRequest('place', null);
  nameConnectionUsers(app, () => ({ owner: 'account', part: 'account app', group: 'app' }));
  app.get('/', async () => [
    currentUser()?.group,
    await inTurnOf(
      'lists',
      () => [],
      async () => currentUser()?.group,
    ),
  ]);
  const response = await fetch(await app.listen({ port: 0, host: '127.0.0.1' }));
  assert.deepEqual(await response.json(), ['app', 'app']);
});
