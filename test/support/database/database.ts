/** Databases for tests: each test file gets a copy of a migrated template. */

import pg from 'pg';
import { migrateCollections } from '../../../src/collections/migrate.ts';
import { newId } from '../../../src/crypto/ids.ts';
import { migrate } from '../../../src/database/migrate.ts';
import { loadPlatform } from '../../../src/platform.ts';

const templateName = 'nuncio_template';

/** Creates the template. The runner calls this once per run. */
export async function createTemplate(adminUrl: string): Promise<void> {
  await execute(adminUrl, `create database ${templateName}`);
  const url = databaseUrl(adminUrl, templateName);
  await migrate(url);
  await migrateCollections(url, (await loadPlatform(null)).collections);
}

export interface TestDatabase {
  url: string;
  drop(): Promise<void>;
}

/** Creates a migrated, empty database. */
export function createDatabase(): Promise<TestDatabase> {
  return createFrom(templateName);
}

/** Creates a database without any table of Nuncio. */
export function createForeignDatabase(): Promise<TestDatabase> {
  return createFrom('template1');
}

async function createFrom(template: string): Promise<TestDatabase> {
  const adminUrl = process.env.TEST_DATABASE_URL;
  if (adminUrl === undefined) throw new Error('tests are run by `npm test` (with a file to run one of them)');
  const name = `test_${newId().replaceAll('-', '')}`;
  // By default PostgreSQL also writes a copy to the log, which takes twice the processor time.
  const admin = openAdmin(adminUrl);
  await admin.query(`create database ${name} template ${template} strategy file_copy`);
  return {
    url: databaseUrl(adminUrl, name),
    drop: async () => {
      await admin.query(`drop database if exists ${name} with (force)`);
    },
  };
}

let opened: pg.Pool | undefined;

/** Connections that all files of this process create and drop databases on. A connection for each statement costs as much as a drop. */
function openAdmin(connectionString: string): pg.Pool {
  if (opened === undefined) {
    opened = new pg.Pool({ connectionString, max: 2, allowExitOnIdle: true });
    // PostgreSQL stops before the last processes of a run do.
    opened.on('error', () => {});
  }
  return opened;
}

function databaseUrl(adminUrl: string, name: string): string {
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  return url.href;
}

/** Executes one statement on a separate connection. */
export async function execute(url: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query(statement);
  } finally {
    await client.end();
  }
}
