/** The reader by sequence under everything that happens at once: publishers, rollbacks, slow commits, recoveries, a withdrawal. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { beginEpoch } from '../../../src/database/epoch.ts';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { EventReader } from '../../../src/webhooks/reader/event_reader.ts';
import { Presenter } from '../../../src/webhooks/sending/presentation.ts';
import { defaultHeaderNames } from '../../../src/webhooks/subscriptions/delivery_headers.ts';
import { findSubscription } from '../../../src/webhooks/subscriptions/subscription.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createRandom } from '../../support/values/random.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  publish,
  pushBody,
  subscribe,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const platform = await loadPlatform(null);
const presentation = {
  baseUrl: server.baseUrl,
  resources: new Map(),
  versions: new Map(),
  conversions: null,
};
const options = {
  db,
  kinds: kindArrays(createCatalogue(platform.eventKinds)),
  sealer: createSealer(testSecret, 'subscription-secret'),
  headerNames: defaultHeaderNames,
  signers: () => [],
  presenter: new Presenter(presentation, () => {}),
};
const reader = new EventReader(options);

/** @param earlier marks of events from before the subscription */
async function setUp(t: Parameters<typeof startSubscriber>[0], earlier: string[] = []) {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  if (earlier.length > 0) await publish(publisher, app.account, earlier);
  await fannedOut(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  // A recovery adds only events that are more than a second older than the subscription.
  await sql`update subscriptions set created_at = created_at + interval '5 seconds' where id = ${id}`.execute(
    db,
  );
  const owner = {
    kind: 'grant',
    grantId: app.grantId,
    accountId: app.account.id,
    clientId: app.clientId,
  } as const;
  const subscription = await findSubscription(db, owner, id);
  assert.ok(subscription);
  return { app, id, subscription };
}

/** Publishes by SQL in a transaction that stays open for a while, and commits or rolls back. */
async function publishSlowly(account: string, mark: string, ms: number, commits: boolean): Promise<void> {
  const rolledBack = new Error('rolled back');
  await db
    .transaction()
    .execute(async (tx) => {
      await sql`select publish('push', ${account}, ${JSON.stringify(pushBody(mark))}::jsonb)`.execute(tx);
      await sleep(ms);
      if (!commits) throw rolledBack;
    })
    .catch((error) => {
      if (error !== rolledBack) throw error;
    });
}

for (const seed of [1, 2, 3]) {
  test(`a reader that stops and goes on sees each event once and in order: seed ${seed}`, async (t) => {
    const random = createRandom(seed);
    // A recovery appends these while others publish.
    const committed = ['early 1', 'early 2', 'early 3'];
    const { app, id, subscription } = await setUp(t, [...committed]);
    let isPublished = false;
    const publishing = Promise.all(
      [0, 1, 2].map(async (stream) => {
        for (let step = 0; step < 15; step += 1) {
          const mark = `${stream}-${step}`;
          const kind = random();
          if (kind < 0.4) {
            await publish(publisher, app.account, [mark]);
            committed.push(mark);
          } else {
            const commits = kind < 0.8;
            await publishSlowly(app.account.id, mark, Math.floor(random() * 60), commits);
            if (commits) committed.push(mark);
          }
          if (step === 7 && stream === 0) {
            const since = new Date(Date.now() - 60_000).toISOString();
            const { status } = await app.request('POST', `/subscriptions/${id}/recover`, {
              json: { since, status: ['succeeded', 'missing'] },
            });
            assert.equal(status, 202);
          }
        }
      }),
    ).then(async () => {
      await sql`select 1`.execute(db);
      isPublished = true;
    });
    const refs: string[] = [];
    let cursor = 0;
    const readOnce = async (): Promise<number> => {
      const page = await reader.read(subscription, { after: cursor, limit: 1 + Math.floor(random() * 7) });
      assert.equal(page.kind, 'page');
      if (page.kind !== 'page') return 0;
      assert.deepEqual(page.gaps, []);
      // The reader may stop after any item.
      const taken = page.items.slice(0, 1 + Math.floor(random() * page.items.length));
      for (const { sequence, body } of taken) {
        assert.equal(sequence, cursor + 1);
        cursor = sequence;
        refs.push(JSON.parse(body.toString()).ref);
      }
      return page.items.length;
    };
    while (!isPublished) {
      if ((await readOnce()) === 0) await sleep(5);
    }
    await publishing;
    const expected = committed.map((mark) => pushBody(mark).ref as string);
    while (refs.length < expected.length) if ((await readOnce()) === 0) await sleep(20);
    await fannedOut(server);
    while ((await readOnce()) > 0);
    assert.deepEqual(refs.toSorted(), expected.toSorted());

    await withdrawGrant(db, app.grantId, 'user');
    assert.deepEqual(await reader.read(subscription, { after: cursor, limit: 10 }), { kind: 'terminated' });
    assert.deepEqual(await reader.read(subscription, { after: 0, limit: 10 }), { kind: 'terminated' });
  });
}

/** A presenter for which each event waits, as it does for a conversion. */
class WaitingPresenter extends Presenter {
  readonly #wait: () => Promise<void>;

  constructor(wait: () => Promise<void>) {
    super(presentation, () => {});
    this.#wait = wait;
  }

  override async present(...given: Parameters<Presenter['present']>) {
    await this.#wait();
    return super.present(...given);
  }
}

test('attack: a page that waited is not returned after the withdrawal of its grant', async (t) => {
  const { app, subscription } = await setUp(t);
  await publish(publisher, app.account, ['one']);
  await fannedOut(server);
  let isWithdrawn = false;
  const waiting = new EventReader({
    ...options,
    presenter: new WaitingPresenter(async () => {
      if (isWithdrawn) await withdrawGrant(db, app.grantId, 'user');
      await sleep(150);
    }),
  });
  const range = { after: 0, limit: 10 };
  const page = await waiting.read(subscription, range);
  assert.ok(page.kind === 'page');
  assert.equal(page.items.length, 1);
  isWithdrawn = true;
  assert.deepEqual(await waiting.read(subscription, range), { kind: 'terminated' });
});

test('after a withdrawal in the middle of publishing, no read returns an event', async (t) => {
  const { app, subscription } = await setUp(t);
  let isWithdrawn = false;
  let isOver = false;
  const reading = (async () => {
    let cursor = 0;
    while (!isOver) {
      const wasWithdrawn: boolean = isWithdrawn;
      const page = await reader.read(subscription, { after: cursor, limit: 5 });
      if (page.kind === 'page') {
        assert.equal(wasWithdrawn, false);
        cursor = page.through;
      } else assert.equal(page.kind, 'terminated');
    }
    return cursor;
  })();
  for (let step = 0; step < 20; step += 1) {
    await publish(publisher, app.account, [`${step}`]);
    if (step === 10) {
      await withdrawGrant(db, app.grantId, 'user');
      isWithdrawn = true;
    }
  }
  await fannedOut(server);
  isOver = true;
  await reading;
  assert.deepEqual(await reader.read(subscription, { after: 0, limit: 5 }), { kind: 'terminated' });
});

test('a failover in between changes the ids of later deliveries only, and nothing is read twice', async (t) => {
  const { app, subscription } = await setUp(t);
  await publish(publisher, app.account, ['1', '2']);
  await fannedOut(server);
  const first = await reader.read(subscription, { after: 0, limit: 10 });
  assert.ok(first.kind === 'page');
  await beginEpoch(db);
  await publish(publisher, app.account, ['3']);
  await fannedOut(server);
  const second = await reader.read(subscription, { after: first.through, limit: 10 });
  assert.ok(second.kind === 'page');
  const idOf = ({ headers }: { headers: Record<string, string> }) => headers['Nuncio-Delivery'];
  const again = await reader.read(subscription, { after: 0, limit: 10 });
  assert.ok(again.kind === 'page');
  assert.deepEqual([...first.items, ...second.items].map(idOf), again.items.map(idOf));
  assert.equal(new Set(again.items.map(idOf)).size, 3);
  assert.deepEqual(
    again.items.map(({ sequence }) => sequence),
    [1, 2, 3],
  );
});

test('a page ends before the bytes exceed its limit, and a larger event comes alone', async (t) => {
  const { app, subscription } = await setUp(t);
  await publish(publisher, app.account, ['a', 'b'.repeat(500), 'c', 'd']);
  await fannedOut(server);
  const sizes: number[] = [];
  for (let cursor = 0; cursor < 4; ) {
    const page = await reader.read(subscription, { after: cursor, limit: 10, bytesMax: 200 });
    assert.equal(page.kind, 'page');
    if (page.kind !== 'page') return;
    assert.deepEqual(page.gaps, []);
    sizes.push(page.items.length);
    cursor = page.through;
  }
  assert.deepEqual(sizes, [1, 1, 2]);
});
