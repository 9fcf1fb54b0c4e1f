/** An application that publishes by SQL, with a database role that has no other privilege. */

import pg from 'pg';
import { newId } from '../../../src/crypto/ids.ts';

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/** @returns the connection URL of a role that is only a member of `nuncio_publisher` */
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

/** Opens a connection of the application and closes it after the test. */
export async function connectApplication(scope: Scope, url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await client.connect();
  scope.after(() => client.end());
  return client;
}
