/** Connections that are lost while idle. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import { openDatabase } from '../../src/database/database.ts';
import { createDatabase } from '../support/database/database.ts';
import { until } from '../support/webhooks/apps.ts';

test('the log of a lost connection has the error, and nothing of the connection', async (t) => {
  const database = await createDatabase();
  const lines: string[] = [];
  const logger = pino({ base: null }, { write: (line: string) => lines.push(line) });
  const onIdleError = (error: Error) => logger.warn({ err: error }, 'database connection lost');
  const idle = openDatabase({ connectionString: database.url, connectionsMax: 1, onIdleError });
  const other = openDatabase({ connectionString: database.url, connectionsMax: 1 });
  t.after(async () => {
    await idle.destroy();
    await other.destroy();
    await database.drop();
  });
  const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(idle);
  await sql`select pg_terminate_backend(${rows[0]?.pid})`.execute(other);
  await until(
    async () => lines.length,
    (count) => count > 0,
  );
  const { err } = JSON.parse(lines[0] as string);
  assert.match(err.message, /terminating connection/);
  assert.equal(err.client, undefined);
  assert.doesNotMatch(lines[0] as string, /secretKey|parsedStatements|connectionParameters/);
});
