/** What the operator and the developers of an app read about a refused request, over HTTP. */

import assert from 'node:assert/strict';
import { sql } from 'kysely';
import type { TestServer } from '../servers/server.ts';
import { until } from '../webhooks/apps.ts';
import { createTestAccount, createTestClient, mintAccessToken } from './oauth.ts';

export interface ShownStep {
  name: string;
  outcome: string;
  error: string | null;
  explanation: string | null;
  request: string | null;
}

export interface ShownConnection {
  id: string;
  outcome: string;
  client: string | null;
  client_name: string | null;
  steps: ShownStep[];
}

/**
 * @returns a function that waits for the connection of a request: as the operator reads it by the id, and, if it is of a registered
 * app, as the developers of this app read it, which is asserted to say the same
 */
export async function createTraceReader(server: TestServer) {
  const { baseUrl, db } = server;
  const client = await createTestClient(server, { scopes: ['admin', 'read:apps'] });
  const [operator, developer] = [
    await createTestAccount(server, { isAdmin: true }),
    await createTestAccount(server),
  ];
  const mint = async (account: typeof operator, scope: string) =>
    (await mintAccessToken(server, { account, client, scopes: [scope] })).accessToken;
  const asOperator = await mint(operator, 'admin');
  const asDeveloper = await mint(developer, 'read:apps');

  async function read(path: string, token: string): Promise<ShownConnection | undefined> {
    const response = await fetch(baseUrl + path, { headers: { authorization: `Bearer ${token}` } });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    return (JSON.parse(text) as { items: ShownConnection[] }).items[0];
  }

  return async (requestId: string | null): Promise<ShownConnection & { refused: ShownStep }> => {
    assert.ok(requestId !== null && requestId !== '');
    const isOfRequest = ({ request, outcome }: ShownStep) => request === requestId && outcome === 'refused';
    const shown = await until(
      () => read(`/admin/connections?request=${requestId}`, asOperator),
      (found) => found?.steps.some(isOfRequest) === true,
    );
    assert.ok(shown !== undefined);
    const refused = shown.steps.find(isOfRequest) as ShownStep;
    if (shown.client_name !== null) {
      const id = shown.client as string;
      await sql`insert into app_members (client_id, account_id, role) values (${id}, ${developer.id}, 'developer')
        on conflict do nothing`.execute(db);
      const same = await read(
        `/apps/${encodeURIComponent(id)}/connections?request=${requestId}`,
        asDeveloper,
      );
      assert.deepEqual(same?.steps.find(isOfRequest), refused);
    }
    return { ...shown, refused };
  };
}
