/**
 * Reads that need conversions to an earlier version. They wait for one thread, so what they hold meanwhile, and how many of them there are, must be
 * bounded.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { KyselyPlugin } from 'kysely';
import { createSealer } from '../../src/crypto/sealing.ts';
import { createCatalogue } from '../../src/events/catalogue.ts';
import { Problem } from '../../src/http/problem.ts';
import { loadPlatform } from '../../src/platform.ts';
import { NoTurnError } from '../../src/shared/limited_work.ts';
import { kindArrays } from '../../src/webhooks/fan_out/fan_out.ts';
import { readDelivery } from '../../src/webhooks/log/delivery_details.ts';
import { EventReader, type ReadResult } from '../../src/webhooks/reader/event_reader.ts';
import { waitingMax } from '../../src/webhooks/sending/conversion_turns.ts';
import { Presenter } from '../../src/webhooks/sending/presentation.ts';
import { defaultHeaderNames } from '../../src/webhooks/subscriptions/delivery_headers.ts';
import { findSubscription } from '../../src/webhooks/subscriptions/subscription.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { createApp, createPublisher, fannedOut, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const file = fileURLToPath(new URL('../support/servers/platforms/versioned.config.ts', import.meta.url));
const platform = await loadPlatform(file);
const server = await startTestServer({ after }, {}, 'dev', platform);
const publisher = await createPublisher(server);
const [older, newer] = ['2026-03-01', '2026-09-01'];
const versions = new Map([['trial', [older, newer].map((name) => ({ name, notices: '' }))]]);
const thread = new URL('../../src/conversion_thread.ts', import.meta.url).href;

/** Counts the bodies that are read. */
const read = { bodies: 0 };
const counting: KyselyPlugin = {
  transformQuery: ({ node }) => node,
  async transformResult({ result }) {
    for (const row of result.rows) if (typeof row.body === 'string') read.bodies += 1;
    return result;
  },
};
const db = server.db.withPlugin(counting);

/** A reader with threads of its own. */
function createReader() {
  const presenter = new Presenter(
    { baseUrl: server.baseUrl, resources: new Map(), versions, conversions: { thread, file } },
    () => {},
  );
  after(() => presenter.stop());
  const reader = new EventReader({
    db,
    kinds: kindArrays(createCatalogue(platform.eventKinds)),
    sealer: createSealer(testSecret, 'subscription-secret'),
    headerNames: defaultHeaderNames,
    signers: () => [],
    presenter,
  });
  return { presenter, reader };
}

/** Other requests have all turns until the function is called. */
function holdTurns({ turns }: Presenter): () => void {
  const released = Promise.withResolvers<object>();
  for (const pace of ['quick', 'quick', 'careful', 'careful'] as const)
    void turns.run(`holder ${pace}`, async (turn) => (turn === null ? pace : released.promise));
  return () => released.resolve({});
}

/** An app with events. @param url null to pull them */
async function createLane(modes: readonly string[], url: string | null = null, version = older) {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url, version, kinds: ['trial'] });
  await publish(app.account.id, modes);
  const { account, ...others } = app;
  const owner = { kind: 'grant', accountId: account.id, ...others } as const;
  const subscription = await findSubscription(db, owner, id);
  assert.ok(subscription);
  return { app, id, subscription, owner };
}

async function publish(account: string, modes: readonly string[]): Promise<void> {
  for (let begin = 0; begin < modes.length; begin += 25) {
    const some = modes.slice(begin, begin + 25);
    const json = some.map((mode) => ({ kind: 'trial', account, body: { mode, new: true } }));
    assert.equal((await publisher('POST', '/events', { json })).status, 202);
  }
  await fannedOut(server);
}

function pageOf(result: ReadResult) {
  assert.equal(result.kind, 'page');
  if (result.kind !== 'page') throw new Error('no page');
  return result;
}

const isOverloaded = (error: unknown) => error instanceof Problem && error.status === 503;

test('attack: pages wait for their conversions without bodies, and a lane has few that wait', async () => {
  const { presenter, reader } = createReader();
  const { subscription } = await createLane(Array(20).fill('x'.repeat(1_000)));
  const plain = await createLane(['fine'], null, newer);
  const release = holdTurns(presenter);
  read.bodies = 0;
  const range = { after: 0, limit: 100 };
  const pages = Array.from({ length: waitingMax + 5 }, () => reader.read(subscription, range));
  const refused = pages.map((page) => page.then(() => false, isOverloaded));
  // Pages are refused while the others wait, and none is read.
  const ended: boolean[] = [];
  for (const page of refused) void page.then((isRefused) => ended.push(isRefused));
  await until(
    async () => ended.length,
    (count) => count === 5,
  );
  assert.ok(ended.every(Boolean), 'a page was read');
  // A page without conversions needs no turn.
  assert.equal(pageOf(await reader.read(plain.subscription, range)).items.length, 1);
  assert.equal(read.bodies, 1);
  release();
  const results = await Promise.allSettled(pages);
  const shown = results.flatMap((result) => (result.status === 'fulfilled' ? [pageOf(result.value)] : []));
  assert.equal(shown.length, waitingMax);
  for (const { items, through } of shown) assert.equal(items.at(-1)?.sequence, through);
  assert.equal((await Promise.all(refused)).filter((each) => each === true).length, 5);
});

test('a page whose client has gone waits no longer, and leaves its room to others', async () => {
  const { presenter, reader } = createReader();
  const { subscription } = await createLane(['fine']);
  const release = holdTurns(presenter);
  const gone = new AbortController();
  const range = { after: 0, limit: 1 };
  const left = Array.from({ length: waitingMax }, () =>
    assert.rejects(reader.read(subscription, { ...range, signal: gone.signal }), NoTurnError),
  );
  await until(
    () => reader.read(subscription, { ...range, signal: AbortSignal.abort() }).catch((error) => error),
    isOverloaded,
  );
  gone.abort();
  await Promise.all(left);
  const page = reader.read(subscription, range);
  release();
  assert.equal(pageOf(await page).items.length, 1);
});

test('pages end after some conversions or bytes, and together have every event in order', async () => {
  const { reader } = createReader();
  const large = Array.from({ length: 24 }, (_none, index) => `${index}`.padEnd(30_000, 'x'));
  const lanes = [Array<string>(20).fill('dear'), large];
  for (const [index, modes] of lanes.entries()) {
    const { subscription } = await createLane(modes);
    const got: string[] = [];
    let pages = 0;
    for (let through = 0; through < modes.length; pages += 1) {
      const page = pageOf(await reader.read(subscription, { after: through, limit: 100 }));
      assert.deepEqual(page.gaps, []);
      assert.ok(page.through > through);
      got.push(...page.items.map(({ body }) => JSON.parse(body.toString()).mode));
      through = page.through;
    }
    assert.deepEqual(got, modes);
    // A conversion of a dear one takes at least 20 ms, of which a turn has about 100; nine large ones have 256 KiB.
    assert.ok(pages >= 3, `${pages} pages of ${index}`);
  }
});

test('a page of proven accounts waits for none whose conversions hang', async () => {
  const { reader } = createReader();
  const victim = await createLane(['fine', 'fine']);
  const range = { after: 0, limit: 2 };
  const isWhole = async () => pageOf(await reader.read(victim.subscription, range)).items.length === 2;
  // Each conversion of the first page may be the first of its account.
  while (!(await isWhole()));
  const attackers = await Promise.all(Array.from({ length: 4 }, () => createLane(['hangs'])));
  let ended = 0;
  const attacks = attackers.map(async ({ subscription }) => {
    const { gaps } = pageOf(await reader.read(subscription, range));
    assert.deepEqual(gaps, [{ from: 1, through: 1, reason: 'failed' }]);
    ended += 1;
  });
  for (let count = 0; count < 5; count += 1) await isWhole();
  // Each takes a second. With turns of one kind, the first page would wait for three.
  assert.ok(ended < 3, `${ended} of 4 attacks ended first`);
  await Promise.all(attacks);
});

test('the details of a delivery wait for a conversion without its body', async (t) => {
  const { presenter } = createReader();
  const subscriber = await startSubscriber(t);
  const { app, id, owner } = await createLane(['fine'], subscriber.url);
  await subscriber.waitFor(1);
  const list = async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items;
  const [{ id: delivery }] = await until(list, ([first]) => first?.state === 'succeeded');
  const names = { headers: defaultHeaderNames, webhookId: 'event' } as const;
  const details = () => readDelivery(db, owner, delivery, names, presenter, () => null);
  const release = holdTurns(presenter);
  read.bodies = 0;
  const waiting = Array.from({ length: waitingMax + 1 }, details);
  await assert.rejects(Promise.race(waiting), isOverloaded);
  assert.equal(read.bodies, 0);
  release();
  const shown = (await Promise.allSettled(waiting)).filter(({ status }) => status === 'fulfilled');
  assert.equal(shown.length, waitingMax);
  const [first] = shown as PromiseFulfilledResult<Awaited<ReturnType<typeof details>>>[];
  const body = '{"mode":"fine"}';
  assert.equal(first?.value?.attempts[0]?.request?.headers['content-length'], String(body.length));
});
