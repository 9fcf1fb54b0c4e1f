/** An application that publishes by SQL, with a database role that may do nothing else. */

import pg from 'pg';
import { newId } from '../../src/crypto/ids.ts';

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/** @returns the URL by which a role logs in that is a member of `nuncio_publisher` and nothing else */
export async function createPublisherRole(scope: Scope, databaseUrl: string): Promise<string> {
  const role = `app_${newId().replaceAll('-', '')}`;
  const admin = new pg.Client({ connectionString: databaseUrl });
  await admin.connect();
  await admin.query(`create role ${role} login password 'secret' in role nuncio_publisher`);
  scope.after(async () => {
    await admin.query(`drop owned by ${role}`).catch(() => {});
    await admin.query(`drop role ${role}`);
    await admin.end();
  });
  const url = new URL(databaseUrl);
  url.username = role;
  url.password = 'secret';
  return url.href;
}

/** A connection of the application, until the test is over. */
export async function connectApplication(scope: Scope, url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await client.connect();
  scope.after(() => client.end());
  return client;
}
