/** The intake shares its thread with all requests, so it takes few bytes at once, and one large body in a turn of the event loop. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { createCatalogue } from '../../src/events/catalogue.ts';
import { type InboxRow, readBatch, takeRows } from '../../src/events/inbox.ts';
import { checkRows } from '../../src/events/ingest.ts';
import { loadPlatform } from '../../src/platform.ts';
import { openTestDatabase } from '../support/database/open_database.ts';

const catalogue = createCatalogue((await loadPlatform(null)).eventKinds);
const bodyBytesMax = 262_144;
const batchBytes = 2 * bodyBytesMax;

test('a batch of the inbox has few large bodies, and those of all accounts', async (t) => {
  const { db } = await openTestDatabase(t, 1);
  const text = 'x'.repeat(200_000);
  for (const account of ['many', 'one']) {
    await sql`
      select publish('push', ${account}, jsonb_build_object('text', ${text}::text)) from generate_series(1, ${account === 'many' ? 9 : 1})`.execute(
      db,
    );
  }
  const { rows } = await readBatch(db, '', 1_000);
  const bytes = rows.reduce((sum, { body }) => sum + body.length, 0);
  assert.ok(bytes > text.length && bytes <= batchBytes + bodyBytesMax, `${bytes} bytes`);
  assert.deepEqual([...new Set(rows.map(({ account }) => account))].toSorted(), ['many', 'one']);
});

test('attack: accounts whose large bodies fill each batch do not keep the others out', async (t) => {
  const { db } = await openTestDatabase(t, 1);
  const text = 'x'.repeat(200_000);
  await sql`
    select publish('push', account, jsonb_build_object('text', ${text}::text))
    from unnest(array['a', 'b', 'c', 'd', 'e', 'f']) as account, generate_series(1, 6)`.execute(db);
  await sql`select publish('push', 'z', '{}')`.execute(db);
  let after = '';
  const taken: string[][] = [];
  while (taken.at(-1)?.length !== 0) {
    const batch = await readBatch(db, after, 1_000);
    await db.transaction().execute((tx) => takeRows(tx, sql`select`, batch.rows));
    after = batch.lastAccount;
    taken.push([...new Set(batch.rows.map(({ account }) => account))]);
  }
  assert.ok(
    taken.findIndex((accounts) => accounts.includes('z')) <= 2,
    taken.map((accounts) => accounts.join('')).join(' '),
  );
});

for (const [size, count, most] of [
  ['large', 8, 1],
  ['small', 800, 100],
] as const) {
  test(`each turn of the event loop checks few ${size} events of a batch`, async (t) => {
    const { db } = await openTestDatabase(t, 1);
    const bytes = 100_000 / (size === 'large' ? 1 : 100);
    const body = JSON.stringify({
      ref: 'x'.repeat(1_000),
      commits: [{ id: '1', message: '', more: 'x'.repeat(bytes) }],
      repository: { name: 'x' },
    });
    const rows = Array.from({ length: count }, (_, index): InboxRow => {
      const id = String(index + 1);
      return {
        id,
        account: 'somebody',
        eventId: id,
        isChosen: false,
        kind: 'push',
        body,
        publishedAt: new Date(),
      };
    });
    let turn = 0;
    let isOver = false;
    const countTurns = () => {
      turn += 1;
      if (!isOver) setImmediate(countTurns);
    };
    const checked = new Map<number, number>();
    const watched = {
      ...catalogue,
      errorsOf(...given: Parameters<typeof catalogue.errorsOf>) {
        checked.set(turn, (checked.get(turn) ?? 0) + 1);
        return catalogue.errorsOf(...given);
      },
    };
    setImmediate(countTurns);
    const { good, rejected } = await checkRows(db, rows, watched);
    isOver = true;
    assert.deepEqual([good.length, rejected.length], [count, 0]);
    assert.ok(Math.max(...checked.values()) <= most, [...checked.values()].join(' '));
  });
}
