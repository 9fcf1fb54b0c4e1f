/**
 * The conformance suite of the Model Context Protocol for authorization servers: all of its scenarios, for clients of
 * each origin. `npm run conformance` runs this file alone.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { conformanceRedirectUri, listScenarios, runConformance } from '../support/clients/mcp_conformance.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';

const resource = 'https://mcp.example/mcp';
const site = await startSite({ after });
const platform = createPlatform({ ...shipped, oauth: { resources: [resource] } });
const server = await startTestServer({ after }, {}, 'dev', platform, siteEgress);
const account = await createTestAccount(server);
const metadata = {
  client_name: 'Conformance suite',
  redirect_uris: [conformanceRedirectUri],
  token_endpoint_auth_method: 'none',
};

const clientIds = {
  async 'that the operator registered'() {
    const client = await createTestClient(server, {
      authMethod: 'none',
      redirectUris: [conformanceRedirectUri],
      grantTypes: ['authorization_code'],
    });
    return client.id;
  },
  async 'that registered itself'() {
    const response = await fetch(`${server.baseUrl}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(metadata),
    });
    return ((await response.json()) as { client_id: string }).client_id;
  },
  async 'that is known by its metadata document'() {
    const id = site.url('/conformance.json');
    site.serve('/conformance.json', { body: { client_id: id, ...metadata } });
    return id;
  },
};

test('the suite has exactly the scenarios that run here', async () => {
  assert.deepEqual(await listScenarios(), [
    'authorization-server-metadata-endpoint',
    'authorization-code-grant',
  ]);
});

for (const [whose, createId] of Object.entries(clientIds)) {
  for (const given of [
    {},
    { resource, specVersion: '2025-11-25' },
    { resource, specVersion: '2026-07-28' },
  ]) {
    const { specVersion = 'all versions' } = given as { specVersion?: string };
    test(`the suite passes for ${specVersion} with a client ${whose}`, async () => {
      const clientId = await createId();
      const { exitCode, output, checks } = await runConformance(server, { account, clientId, ...given });
      // Skipped scenarios also exit with code 0.
      assert.deepEqual(
        checks.map(({ id, status }) => `${id} ${status}`),
        [
          'authorization-code-grant SUCCESS',
          'authorization-server-metadata SUCCESS',
          'authorization-server-metadata-cimd SUCCESS',
        ],
        output,
      );
      assert.equal(exitCode, 0, output);
    });
  }
}

test('the suite fails when the server is wrong', async () => {
  const clientId = await clientIds['that the operator registered']();
  const { exitCode, checks } = await runConformance(server, {
    account,
    clientId,
    resource: 'https://unknown.example/mcp',
  });
  assert.equal(exitCode, 1);
  const grant = checks.find(({ id }) => id === 'authorization-code-grant');
  assert.equal(grant?.status, 'FAILURE');
  assert.match(grant?.errorMessage ?? '', /invalid_target/);
});
