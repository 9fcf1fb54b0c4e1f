/**
 * The response times of the console: every request of its pages, one after another, to a server whose log has a
 * million deliveries of 30 days, with 1,000 subscriptions and 200 apps. Prints the median and the maximum of each.
 *
 *   npm test -- bench/console.ts        (needs a database, which the test runner provides)
 *
 * DELIVERIES and ROUNDS in the environment change the size and how often each request is sent.
 */

import { after, test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../src/database/database.ts';
import { consoleReads } from '../test/support/console/console_requests.ts';
import { createConsoleUser } from '../test/support/console/console_user.ts';
import { seedLog, seedParties } from '../test/support/database/database_with_history.ts';
import { startTestServer } from '../test/support/servers/server.ts';

const deliveries = Number(process.env.DELIVERIES ?? 1_000_000);
const rounds = Number(process.env.ROUNDS ?? 7);

const server = await startTestServer({ after });
const user = await createConsoleUser(server, {
  isAdmin: true,
  scopes: ['openid', 'read:profile', 'read:apps', 'write:apps', 'read:webhooks', 'write:webhooks', 'admin'],
});

async function make(path: string, json: unknown) {
  const { status, body, text } = await user.request('POST', path, { json });
  if (status !== 201) throw new Error(`${path}: ${status} ${text}`);
  return body;
}

test('the console waits less than a second', async () => {
  const app = await make('/apps', {
    client_name: 'Mine',
    redirect_uris: ['https://mine.example/callback'],
  });
  const { id } = await make('/subscriptions', { url: 'https://127.0.0.1:10009/hooks', kinds: ['*'] });
  // Statements that create a million rows take longer than the timeout of a request.
  const db = openDatabase({
    connectionString: server.databaseUrl,
    connectionsMax: 2,
    resultTimeoutMs: 3_600_000,
  });
  await seedParties(db, user.account.id, { accounts: 500, apps: 199, subscriptions: 999 });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  const lane = Number(rows[0]?.lane);
  const begun = performance.now();
  await seedLog(db, lane, deliveries);
  await db.destroy();
  console.log(`${deliveries} deliveries made in ${Math.round((performance.now() - begun) / 1_000)} s`);
  const paths = consoleReads({
    subscriptionId: id,
    lane,
    deliveries: Math.floor((deliveries * 3) / 4),
    appId: app.client_id,
    accountId: user.account.id,
  });
  const times = new Map<number, number[]>();
  for (let round = 0; round < rounds; round += 1) {
    for (const [index, path] of paths.entries()) {
      const asked = performance.now();
      const { status, text } = await user.request('GET', path);
      if (status !== 200) throw new Error(`${path}: ${status} ${text}`);
      times.set(index, [...(times.get(index) ?? []), performance.now() - asked]);
    }
  }
  const table = paths.map((path, index) => {
    const sorted = (times.get(index) ?? []).toSorted((a, b) => a - b);
    return {
      request: decodeURIComponent(path).replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '<id>'),
      p50: Math.round((sorted[Math.floor(sorted.length / 2)] ?? 0) * 10) / 10,
      max: Math.round((sorted.at(-1) ?? 0) * 10) / 10,
    };
  });
  for (const { request, p50, max } of table.toSorted((a, b) => b.max - a.max)) {
    console.log(`${String(p50).padStart(8)} ${String(max).padStart(8)}  ${request}`);
  }
});
