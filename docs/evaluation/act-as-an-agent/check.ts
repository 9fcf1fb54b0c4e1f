/** The article exists, is published, and its id was printed. */

import assert from 'node:assert/strict';
import { sql } from 'kysely';
import { createTestAccount, createTestClient, mintAccessToken } from '../../../test/support/clients/oauth.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ server, run }) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const url = `${server.baseUrl}/mcp`;
  const scopes = ['read:posts', 'write:posts'];
  const { accessToken } = await mintAccessToken(server, { account, client, scopes, claims: { aud: url } });
  const output = await run('agent.js', { MCP_URL: url, TOKEN: accessToken });
  const { rows } = await sql<{ id: string; title: string; state: string }>`
    select id, title, state from articles where author = ${account.id}`.execute(server.db);
  assert.deepEqual(rows, [{ id: output.trim(), title: 'From an agent', state: 'published' }]);
};
