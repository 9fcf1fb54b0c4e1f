/** Makes clients old. The database does not let their times go back by itself. */

import { type RawBuilder, sql } from 'kysely';
import type { TestServer } from '../servers/server.ts';

/** Sets the times of matching clients 40 days back. */
export async function ageClients(
  { db }: Pick<TestServer, 'db'>,
  condition: RawBuilder<unknown>,
): Promise<void> {
  await db.transaction().execute(async (tx) => {
    await sql`alter table clients disable trigger client_verification`.execute(tx);
    await sql`
      update clients set created_at = now() - interval '40 days', updated_at = now() - interval '40 days'
      where ${condition}`.execute(tx);
    await sql`alter table clients enable trigger client_verification`.execute(tx);
  });
}
