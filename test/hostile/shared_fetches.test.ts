/** Documents and keys of apps, of which requests at the same time share one fetch, asked for first by a network whose share is used up. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { generateKeyPair, SignJWT } from 'jose';
import { authorizationUrl, createPkce, createTestClient, postForm } from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const site = await startSite({ after });
const server = await startTestServer(
  { after },
  { NUNCIO_TRUST_PROXY: '127.0.0.1' },
  'dev',
  undefined,
  siteEgress,
);
const redirectUri = site.url('/callback');
/** Of 16 requests at once to a server, a network gets these. */
const share = 7;

function authorizeFrom(address: string, id: string): Promise<Response> {
  const challenge = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const url = authorizationUrl(server, { id, redirectUri }, { ...challenge, scope: 'read:posts' });
  return fetch(url, { redirect: 'manual', headers: { 'x-forwarded-for': address } });
}

/** The fetch has begun to wait for its turn by then, which nothing shows. */
const waitForFetch = () => setTimeout(200);

/** Uses up the share of a network at one of the site's names. */
async function useShare(address: string, name: string): Promise<{ hanging: Promise<unknown> }> {
  const paths = Array.from({ length: share }, (_none, index) => `/${name}${index}`);
  for (const path of paths) site.serve(path, () => {});
  const requests = paths.map((path) => authorizeFrom(address, site.url(path, name)));
  await until(
    async () => paths.reduce((sum, path) => sum + site.requests(path), 0),
    (count) => count === share,
  );
  return { hanging: Promise.race(requests) };
}

test('attack: the document of an app', async () => {
  const id = site.url('/app', 'document');
  const metadata = {
    client_name: 'Reader',
    redirect_uris: [redirectUri],
    token_endpoint_auth_method: 'none',
  };
  site.serve('/app', { body: { client_id: id, ...metadata } });
  const { hanging } = await useShare('203.0.113.1', 'document');
  const first = authorizeFrom('203.0.113.1', id);
  await waitForFetch();
  const other = authorizeFrom('203.0.113.2', id).then(({ status }) => status);
  assert.equal(await Promise.race([hanging.then(() => 'hanging'), other]), 303);
  assert.equal((await first).status, 303);
  assert.equal(site.requests('/app'), 1);
});

test('attack: the keys of an app', async () => {
  const { privateKey } = await generateKeyPair('ES256');
  const client = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks_uri: site.url('/keys', 'keys') },
  });
  site.serve('/keys', { body: { keys: [] } });
  const assertion = () =>
    new SignJWT({ jti: crypto.randomUUID() })
      .setProtectedHeader({ alg: 'ES256' })
      .setIssuer(client.id)
      .setSubject(client.id)
      .setAudience(server.baseUrl)
      .setIssuedAt()
      .setExpirationTime('1 minute')
      .sign(privateKey);
  const askFrom = async (address: string) =>
    postForm(
      server,
      '/oauth/token',
      null,
      {
        grant_type: 'client_credentials',
        client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
        client_assertion: await assertion(),
      },
      { 'x-forwarded-for': address },
    );
  const { hanging } = await useShare('203.0.113.3', 'keys');
  const first = askFrom('203.0.113.3');
  await waitForFetch();
  const other = askFrom('203.0.113.4').then(({ status }) => status);
  assert.equal(await Promise.race([hanging.then(() => 'hanging'), other]), 401);
  assert.equal((await first).status, 401);
  assert.equal(site.requests('/keys'), 1);
});
