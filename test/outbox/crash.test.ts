/** `kill -9` of an application with an outbox and of its relay: no event is lost or duplicated. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, describe, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { createRelay } from '../../src/outbox/outbox.ts';
import { createPublisher } from '../../src/protect/protect.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { databases, openOutbox, pushes } from '../support/publishing/application_outbox.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createRandom } from '../support/values/random.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const application = fileURLToPath(
  new URL('../support/publishing/killed_outbox_application.ts', import.meta.url),
);
const server = await startTestServer({ after });
const client = await createTestClient(server, {
  grantTypes: ['client_credentials'],
  scopes: ['write:events'],
  redirectUris: [],
});
const credentials = [server.baseUrl, client.id, client.secret ?? ''];

function run(t: TestContext, ...parameters: string[]): ChildProcess {
  const child = spawn(process.execPath, [application, ...parameters], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.after(async () => {
    if (child.exitCode === null && child.signalCode === null) await kill(child);
  });
  return child;
}

async function kill(child: ChildProcess): Promise<void> {
  child.kill('SIGKILL');
  if (child.signalCode === null) await once(child, 'exit');
}

/** Marks of the events that the server has stored for an account, in order. */
async function stored(owner: string): Promise<string[]> {
  const { rows } = await sql<{ mark: string }>`
    select replace(body::json ->> 'ref', 'refs/heads/', '') as mark from events
    where account_id = ${owner} order by position`.execute(server.db);
  return rows.map(({ mark }) => mark);
}

for (const database of databases) {
  describe(`kill -9 with ${database}`, () => {
    test('of the application: the event is published if and only if its change is committed', async (t) => {
      const { outbox, place, query } = await openOutbox(t, database);
      const account = await createTestAccount(server);
      await query('create table orders (mark text)');
      for (const [number, when] of ['before', 'after', 'before', 'after'].entries()) {
        const child = run(t, database, place, 'append', account.id, `${database}-${number}`, when);
        const [, signal] = await once(child, 'exit');
        assert.equal(signal, 'SIGKILL');
      }
      const [issuer = '', clientId = '', clientSecret = ''] = credentials;
      const publisher = createPublisher({ issuer, clientId, clientSecret });
      await createRelay({ store: outbox, publisher }).runOnce();
      const kept = [`${database}-1`, `${database}-3`];
      assert.deepEqual(
        (await query('select mark from orders order by mark')).map(({ mark }) => mark),
        kept,
      );
      assert.deepEqual(await stored(account.id), kept);
    });

    test('of the relay: each event is stored once and in the order of its account', async (t) => {
      const { outbox, place, append, query } = await openOutbox(t, database);
      const apps = [await createApp(server), await createApp(server)];
      const subscriber = await startSubscriber(t);
      for (const app of apps) await subscribe(app, { url: subscriber.url, ordered: true });
      const random = createRandom(database.length);
      const marks = Array.from({ length: 300 }, (_, index) => `${database}_relay-${index}`);
      const of = (place: number) => marks.filter((_, index) => index % 2 === place);
      await append(marks.flatMap((mark, index) => pushes(apps[index % 2]?.account.id ?? '', [mark])));
      let kills = 0;
      const count = async () => (await outbox.stats()).waiting;
      while ((await count()) > 0) {
        const child = run(t, database, place, 'relay', ...credentials);
        await once(child.stdout as NodeJS.ReadableStream, 'data');
        if (kills < 8) {
          // The relay is killed at a random point of the next batches.
          const before = await count();
          await until(count, (waiting) => waiting < before);
          await sleep(random() * 10);
          await kill(child);
          kills += 1;
          // Expires the lease, so that the next relay does not wait for it.
          await query(
            database === 'SQLite'
              ? 'update nuncio_outbox_lease set until = 0'
              : `update nuncio_outbox_lease set until = '-infinity'`,
          );
        } else {
          await until(count, (waiting) => waiting === 0);
          await kill(child);
        }
      }
      for (const [place, { account }] of apps.entries())
        assert.deepEqual(await stored(account.id), of(place));
      const received = await subscriber.waitFor(marks.length);
      const refs = received.map(({ body }) => JSON.parse(body).ref.replace('refs/heads/', '') as string);
      for (const place of [0, 1]) {
        assert.deepEqual(
          refs.filter((ref) => Number(ref.split('-')[1]) % 2 === place),
          of(place),
        );
      }
      assert.equal((await outbox.stats()).rejected, 0);
    });

    test('of the relay with the lease: another relay takes over when the lease expires', async (t) => {
      const { outbox, place, append, query } = await openOutbox(t, database);
      const account = await createTestAccount(server);
      assert.ok(await outbox.hold('a relay that died', 5_000));
      await append(pushes(account.id, [`${database}-taken-over`]));
      const child = run(t, database, place, 'relay', ...credentials);
      await until(
        () => stored(account.id),
        (marks) => marks.length === 1,
      );
      await kill(child);
      assert.equal(
        (await query('select holder from nuncio_outbox_lease'))[0]?.holder === 'a relay that died',
        false,
      );
    });
  });
}
