/**
 * Do tables grow with time? Simulates days of logins, refreshes, client credentials and introspection over real HTTP.
 * After each day, it moves every time in the database back by one day and runs the housekeeping. Prints the number of
 * rows of each table as it goes.
 *
 *   npm test -- bench/month.ts          (needs a database, which the test runner provides)
 *
 * The second month must end with the same number of rows as the first, except for rows that are kept for 90 days by
 * design.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deleteSupersededGrants, runHousekeeping } from '../src/oauth/housekeeping.ts';
import {
  authorize,
  clientToken,
  createTestAccount,
  createTestClient,
  postForm,
} from '../test/support/clients/oauth.ts';
import { startTestServer } from '../test/support/servers/server.ts';

const days = 62;
const users = 3;
/** Kept for 90 days by design. */
const keptLonger = new Set(['audit_entries']);

const server = await startTestServer({ after });

test('tables do not grow with time', async () => {
  const client = await createTestClient(server);
  const accounts = await Promise.all(Array.from({ length: users }, () => createTestAccount(server)));
  const columns = await timeColumns();
  const counts: Record<string, number>[] = [];
  let refreshTokens: string[] = [];
  for (let day = 1; day <= days; day += 1) {
    const kept: string[] = [];
    for (const token of refreshTokens) {
      const { status, body } = await postForm(server, '/oauth/token', client, {
        grant_type: 'refresh_token',
        refresh_token: token,
      });
      assert.equal(status, 200, JSON.stringify(body));
      kept.push(body.refresh_token as string);
    }
    // Each app connects anew every day. Yesterday's tokens are lost, as with removed installations.
    refreshTokens = [];
    for (const account of accounts) {
      const { refreshToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
      refreshTokens.push(refreshToken as string);
    }
    for (let time = 0; time < 5; time += 1) await clientToken(server, client, ['read:posts']);
    await passDay(columns);
    await runHousekeeping(server.db);
    await deleteSupersededGrants(server.db);
    counts.push(await countRows());
  }
  const month = counts[days / 2 - 1] as Record<string, number>;
  const end = counts[days - 1] as Record<string, number>;
  const rows = Object.keys(end).map((table) => ({ table, day_31: month[table], day_62: end[table] }));
  console.table(rows.filter((row) => row.day_62 !== 0));
  for (const { table, day_31 = 0, day_62 = 0 } of rows) {
    if (!keptLonger.has(table))
      assert.ok(day_62 <= day_31 + users, `${table} grows: ${day_31}, then ${day_62}`);
  }
});

/** Returns the time columns of all tables that are written at run time. */
async function timeColumns(): Promise<{ table: string; columns: string[] }[]> {
  const { rows } = await sql<{ table: string; columns: string[] }>`
    select c.table_name as "table", array_agg(c.column_name::text) as columns
    from information_schema.columns c
    join information_schema.tables t using (table_schema, table_name)
    join pg_class on pg_class.relnamespace = current_schema()::regnamespace and pg_class.relname = c.table_name
    where c.table_schema = current_schema() and c.data_type = 'timestamp with time zone' and t.table_type = 'BASE TABLE'
      and not relispartition and c.table_name not in ('migrations', 'nodes', 'signing_keys')
    group by c.table_name`.execute(server.db);
  return rows;
}

async function passDay(tables: { table: string; columns: string[] }[]): Promise<void> {
  for (const { table, columns } of tables) {
    const assignments = columns.map(
      (column) => sql`${sql.ref(column)} = ${sql.ref(column)} - interval '1 day'`,
    );
    await sql`update ${sql.table(table)} set ${sql.join(assignments)}`.execute(server.db);
  }
}

async function countRows(): Promise<Record<string, number>> {
  const { rows } = await sql<{ table: string }>`
    select relname as "table" from pg_class
    where relkind = 'r' and not relispartition and relnamespace = current_schema()::regnamespace
    order by 1`.execute(server.db);
  const counts: Record<string, number> = {};
  for (const { table } of rows) {
    const counted = await sql<{ count: string }>`select count(*) from ${sql.table(table)}`.execute(server.db);
    counts[table] = Number(counted.rows[0]?.count);
  }
  return counts;
}
