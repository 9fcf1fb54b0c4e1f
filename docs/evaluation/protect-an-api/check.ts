/** Tokens that are right, missing, altered, for another audience, and without the scope. */

import assert from 'node:assert/strict';
import { defineEventKind, Type } from '../../../src/index.ts';
import { createPlatform } from '../../../src/platform.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../../test/support/clients/oauth.ts';
import { freePort, startTestServer } from '../../../test/support/servers/server.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ start, after }) => {
  const port = String(await freePort());
  const api = `http://localhost:${port}`;
  const reported = defineEventKind({
    name: 'report.created',
    description: 'A report is there.',
    object: 'reports',
    schema: Type.Object({ id: Type.String() }),
    example: { id: 'r1' },
  });
  const platform = createPlatform({ oauth: { resources: [api] }, eventKinds: [reported] });
  const server = await startTestServer({ after }, {}, 'dev', platform);
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: ['read:reports', 'write:reports'] });
  const own = await createTestClient(server, {
    redirectUris: [],
    grantTypes: ['client_credentials'],
    scopes: ['read:tokens'],
  });
  await start('api.js', {
    NUNCIO_URL: server.baseUrl,
    CLIENT_ID: own.id,
    CLIENT_SECRET: own.secret as string,
    API_URL: api,
    PORT: port,
  });
  const tokenFor = async (aud: string, scopes: string[]) =>
    (await mintAccessToken(server, { account, client, scopes, claims: { aud } })).accessToken;
  const get = (token?: string) =>
    fetch(`${api}/reports`, token === undefined ? {} : { headers: { authorization: `Bearer ${token}` } });

  const right = await tokenFor(api, ['read:reports']);
  const allowed = await get(right);
  assert.equal(allowed.status, 200);
  assert.deepEqual(await allowed.json(), { account: account.id });

  const without = await get();
  assert.equal(without.status, 401);
  const metadata = /resource_metadata="([^"]+)"/.exec(without.headers.get('www-authenticate') ?? '')?.[1];
  assert.ok(metadata, 'WWW-Authenticate names the metadata');
  const document = (await (await fetch(metadata)).json()) as { authorization_servers: string[] };
  assert.deepEqual(document.authorization_servers, [server.baseUrl]);

  const altered = `${right.slice(0, -8)}${right.at(-8) === 'A' ? 'B' : 'A'}${right.slice(-7)}`;
  assert.equal((await get(altered)).status, 401);
  assert.equal((await get(await tokenFor(server.baseUrl, ['read:reports']))).status, 401);
  const refused = await get(await tokenFor(api, ['write:reports']));
  assert.equal(refused.status, 403);
  assert.match(refused.headers.get('www-authenticate') ?? '', /insufficient_scope/);
};
