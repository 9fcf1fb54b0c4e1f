/** An open database of a test. */

import type { TestContext } from 'node:test';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { createDatabase } from './database.ts';
import { atEnd } from './embedded_process.ts';

/**
 * Opens a migrated, empty database without a server. At the end of the test, the database is closed and dropped.
 * @param settings of PostgreSQL, for each session
 */
export async function openTestDatabase(
  t: TestContext,
  connectionsMax: number,
  settings: Readonly<Record<string, string>> = {},
): Promise<{ db: Database; url: string }> {
  const database = await createDatabase();
  const url = new URL(database.url);
  const options = Object.entries(settings).map(([name, value]) => `-c ${name}=${value}`);
  if (options.length > 0) url.searchParams.set('options', options.join(' '));
  const db = openDatabase({ connectionString: url.href, connectionsMax });
  atEnd(t, async () => {
    await db.destroy();
    await database.drop();
  });
  return { db, url: database.url };
}
