/**
 * The console's requests use indexes and read a bounded amount of data: the same requests read about as much from a
 * log as from a longer one. Compares the blocks that PostgreSQL reports, not times.
 */

import '../support/database/plans.ts';
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { runHousekeeping } from '../../src/oauth/housekeeping.ts';
import { startRecovery, stepRecovery } from '../../src/webhooks/fan_out/recovery.ts';
import { scannedMax } from '../../src/webhooks/log/delivery_list.ts';
import { deliveryId, deliveryIdPrefix } from '../../src/webhooks/subscriptions/delivery_id.ts';
import { consoleReads, type Places } from '../support/console/console_requests.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { historyDays, seedLog, seedParties } from '../support/database/database_with_history.ts';
import {
  buffersOf,
  captureStatements,
  nodesOf,
  type PlanMode,
  planModes,
  type Statement,
} from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const user = await createConsoleUser(server, {
  isAdmin: true,
  scopes: ['openid', 'read:profile', 'read:apps', 'write:apps', 'read:webhooks', 'write:webhooks', 'admin'],
});

/** In both logs, the busy subscription has more deliveries than one page scans. */
const sizes = { short: 16_000, long: 40_000 };

const places = await seed();

async function seed(): Promise<Omit<Places, 'deliveries'>> {
  const app = await user.request('POST', '/apps', {
    json: { client_name: 'Mine', redirect_uris: ['https://mine.example/callback'] },
  });
  assert.equal(app.status, 201, app.text);
  await seedParties(db, user.account.id, { accounts: 200, apps: 40, subscriptions: 300 });
  const made = await user.request('POST', '/subscriptions', {
    json: { url: 'https://127.0.0.1:10009/hooks', kinds: ['*'] },
  });
  assert.equal(made.status, 201, made.text);
  const { rows } = await sql<{
    lane: string;
  }>`select lane from subscriptions where id = ${made.body.id}`.execute(db);
  return {
    subscriptionId: made.body.id,
    lane: Number(rows[0]?.lane),
    appId: app.body.client_id,
    accountId: user.account.id,
  };
}

/** Returns the statements by path. The paths are the same for both logs. */
async function measure(deliveries: number): Promise<Map<string, Statement[]>> {
  await seedLog(db, places.lane, deliveries);
  const paths = consoleReads({ ...places, deliveries: Math.floor((deliveries * 3) / 4) });
  const measured = new Map<string, Statement[]>();
  // The first requests fill the caches.
  for (const path of paths) await captured('force_custom_plan', path);
  for (const mode of planModes) {
    for (const [index, path] of paths.entries()) {
      measured.set(`${index} ${mode}`, await captured(mode, path));
      names.set(`${index} ${mode}`, `${path} by ${mode}`);
    }
  }
  return measured;
}

const names = new Map<string, string>();

/** On a busy machine the log may time out with 503. The request is repeated, because only the amount read matters. */
async function captured(mode: PlanMode, path: string): Promise<Statement[]> {
  for (let triesLeft = 10; ; triesLeft -= 1) {
    let status = 0;
    let text = '';
    const statements = await captureStatements(mode, async () => {
      ({ status, text } = await user.request('GET', path));
    });
    if (status === 200) return statements;
    assert.ok(status === 503 && triesLeft > 0, `${path}: ${status} ${text}`);
  }
}

/** Tables that grow with the number of deliveries. */
const growing = /^(events|deliveries|attempts)(_\d{8})?$|^(event_ids|retries|audit_entries|delivery_stats)$/;

/**
 * Blocks of a partition that may be scanned sequentially. The oldest and the newest day of the log have only some of a day's rows, and
 * PostgreSQL rightly scans a partition of a few blocks: an index costs as much.
 */
const smallBlocks = 6;

/** Returns the tables of the log that were scanned sequentially and were neither empty nor small. */
function scanned(statements: readonly Statement[]): string[] {
  return nodesOf(statements)
    .filter((node) => node['Node Type'] === 'Seq Scan' && growing.test(node['Relation Name'] ?? ''))
    .filter(
      (node) => (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops'] > 0,
    )
    .filter(
      (node) => node['Shared Hit Blocks'] + node['Shared Read Blocks'] > smallBlocks * node['Actual Loops'],
    )
    .map((node) => `${node['Relation Name']}`);
}

/** Blocks read for one delivery: its row, its event, its attempts, its row in `retries`. */
const blocksOfDelivery = 8;
/** Blocks read to find the start in the partitions of all days. */
const blocksToBegin = 1_000;
/** Tolerance for deeper index trees and other row positions. */
const slackBlocks = 150;
/**
 * A page of the audit log: the planner may join its accounts by index instead of by scan (2 blocks a row), and autovacuum has not
 * marked all rows as visible.
 */
const auditBlocks = 150;

test('no request of the console reads more from a longer log', async (t) => {
  const short = await measure(sizes.short);
  const long = await measure(sizes.long);
  assert.equal(long.size, short.size);
  const bound = blocksToBegin + blocksOfDelivery * scannedMax;
  for (const [key, statements] of long) {
    const name = names.get(key) as string;
    await t.test(name.replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '<id>'), () => {
      const before = buffersOf(short.get(key) as Statement[]);
      const after = buffersOf(statements);
      assert.deepEqual(scanned(statements), []);
      assert.ok(after <= bound, `${after} blocks`);
      // Two days have fewer deliveries than one page scans, and fewer failed ones: the request reads all of them.
      const isStretch = name.includes('/deliveries?') && name.includes('&until=');
      const inStretch = isStretch ? (sizes.long * 2) / historyDays : 0;
      const failed = name.includes('status=failed&kind=') ? sizes.long / 50 : 0;
      // The server attempts fresh deliveries meanwhile, as many as it has time for: at most one page of them is read.
      const failing = name.includes('status=failing') ? 50 : 0;
      const audit = name.includes('/admin/audit') ? auditBlocks : 0;
      const looked = blocksOfDelivery * (inStretch + failed + failing) + audit;
      assert.ok(after <= before * 1.2 + slackBlocks + looked, `${before} blocks, then ${after}`);
    });
  }
});

test('housekeeping during a captured request is not counted as part of it', async () => {
  const { promise: captured, resolve: isCaptured } = Promise.withResolvers<void>();
  // Started here, so that it does not belong to the captured work.
  const background = captured.then(() => runHousekeeping(db));
  const statements = await captureStatements('force_custom_plan', async () => {
    isCaptured();
    await background;
    assert.equal((await user.request('GET', '/apps')).status, 200);
  });
  assert.ok(statements.length > 0);
  assert.ok(!statements.some(({ text }) => text.includes('audit_entries')));
});

test('a request for one delivery reads its day alone', async () => {
  const id = deliveryId(deliveryIdPrefix(places.lane, places.subscriptionId), 5_000);
  const resent = await captureStatements('force_generic_plan', async () => {
    const { status, text } = await user.request('POST', `/deliveries/${id}/resend`);
    assert.equal(status, 202, text);
  });
  assert.deepEqual(scanned(resent), []);
  assert.ok(buffersOf(resent) <= blocksToBegin, `${buffersOf(resent)} blocks`);
});

test('a step of a recovery reads no more than its deliveries', async () => {
  const kinds = { names: '', objects: '', patterns: '', appSubscriptions: 'all' } as never;
  const range = { since: new Date(0), until: null, states: ['failed' as const] };
  await startRecovery(db, places.lane, range);
  const step = await captureStatements('force_generic_plan', async () => {
    assert.equal(await stepRecovery(db, kinds), true);
  });
  assert.deepEqual(scanned(step), []);
  assert.ok(buffersOf(step) <= 20_000, `${buffersOf(step)} blocks`);
});

test('erasing a body reads minutes of one day, whoever chose the id', async () => {
  const publisher = await createPublisher(server);
  const { rows } = await sql<{ id: string; own: string }>`
    select a.id, b.id as own from events a, events b where a.position = 20001 and b.position = 20002`.execute(
    db,
  );
  const { id = '', own = '' } = rows[0] ?? {};
  assert.equal(id, 'order-20001');
  for (const erased of [id, own]) {
    const statements = await captureStatements('force_generic_plan', async () => {
      const { status, text } = await publisher('DELETE', `/events/${erased}/body`);
      assert.equal(status, 204, text);
    });
    assert.deepEqual(scanned(statements), []);
    assert.ok(buffersOf(statements) <= blocksToBegin, `${buffersOf(statements)} blocks`);
    assert.equal((await publisher('DELETE', `/events/${erased}/body`)).status, 404);
  }
  const { rows: left } = await sql<{ count: number }>`
    select count(*)::int as count from events where body is null`.execute(db);
  assert.equal(left[0]?.count, 2);
});
