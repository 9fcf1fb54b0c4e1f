/** The end of many subscriptions at once. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { createTestClient, mintAccessToken } from '../../test/support/clients/oauth.ts';
import { testSecret } from '../../test/support/servers/server.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident, Row, Size } from './row.ts';
import { finish, measureAlone, measureIncident, type Stage, waitUntil, withStage } from './stage.ts';

/** Ends the subscriptions of the crowd. */
type End = (stage: Stage, crowd: readonly CrowdMember[]) => Promise<void>;

/** An app with 20,000 subscriptions is deleted; ten users with 2,000 each disconnect it, by the API and by SQL. */
export const clientDelete: Incident = async (size) => [
  await measureEnd(size, 'client-delete', deleteClient),
  await measureEnd(size, 'client-delete, ten grants by the API', withdrawByApi),
  await measureEnd(size, 'client-delete, ten grants by SQL', withdrawBySql),
];

function measureEnd(size: Size, name: string, end: End): Promise<Row> {
  return withStage(size, async (stage) => {
    const crowd = await makeCrowd(stage.bench, {
      users: 10,
      subscriptionsOfEach: 2_000,
      urlOf: () => stage.othersUrl,
    });
    await measureAlone(stage);
    // The server leases the lanes for some seconds after a delivery.
    for (const { accountId } of crowd) await stage.publish(accountId, 1);
    await waitUntil(60, async () => (await stage.others.ask('report')).count >= 20_000);
    let tookMs = Number.NaN;
    await measureIncident(stage, async () => {
      const begunAt = performance.now();
      await end(stage, crowd);
      tookMs = performance.now() - begunAt;
    });
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from subscriptions
      where state <> 'ended' and lane = any(${crowd.flatMap(({ lanes }) => lanes)}::bigint[])`.execute(
      stage.bench.db,
    );
    const left = [{ what: 'subscriptions that have not ended', value: rows[0]?.count ?? 0, max: 0 }];
    return finish(stage, name, 250, left, `ended in ${Math.round(tookMs)} ms`);
  });
}

/** `nuncio client delete`. */
async function deleteClient({ bench }: Stage, crowd: readonly CrowdMember[]): Promise<void> {
  const cli = fileURLToPath(new URL('../../src/cli.ts', import.meta.url));
  const { PATH, HOME } = process.env;
  const child = spawn(process.execPath, [cli, 'client', 'delete', crowd[0]?.clientId as string], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { PATH, HOME, DATABASE_URL: bench.databaseUrl, NUNCIO_SECRET: testSecret.toString() },
  });
  const [code] = await once(child, 'exit');
  if (code !== 0) throw new Error(`nuncio client delete ended with ${code}`);
}

/** `DELETE /grants/<id>` of all users at once. */
async function withdrawByApi({ bench }: Stage, crowd: readonly CrowdMember[]): Promise<void> {
  const client = await createTestClient(bench, { scopes: ['write:accounts'] });
  const { accessToken } = await mintAccessToken(bench, { client, scopes: ['write:accounts'] });
  const headers = { authorization: `Bearer ${accessToken}` };
  await Promise.all(
    crowd.map(async ({ grantId }) => {
      const { status } = await fetch(`${bench.baseUrl}/grants/${grantId}`, { method: 'DELETE', headers });
      if (status !== 204) throw new Error(`DELETE gave ${status}`);
    }),
  );
}

async function withdrawBySql({ bench }: Stage, crowd: readonly CrowdMember[]): Promise<void> {
  await sql`
    update grants set withdrawn_at = now()
    where id = any(${crowd.map(({ grantId }) => grantId)}::uuid[])`.execute(bench.db);
}
