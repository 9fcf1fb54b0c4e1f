/** Documents that several networks want, while one of them has used up its turns. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { DnsClient } from '../../../src/egress/dns/client.ts';
import { resolveWith } from '../../../src/egress/resolve.ts';
import { authorizationUrl, createPkce } from '../../support/clients/oauth.ts';
import { authorityCertificate } from '../../support/network/certificates.ts';
import { answerTo, startNameServer } from '../../support/network/name_server.ts';
import { type Site, siteEgress, startSite } from '../../support/network/site.ts';
import { startTestServer, type TestServer } from '../../support/servers/server.ts';
import { until } from '../../support/webhooks/apps.ts';

const redirectUri = 'https://reader.apps.example/callback';

/** @returns the URL of an app's document */
function serveApp(site: Site, path: string): string {
  const id = site.url(path);
  site.serve(path, {
    body: {
      client_id: id,
      client_name: 'Reader',
      redirect_uris: [redirectUri],
      grant_types: ['authorization_code'],
      token_endpoint_auth_method: 'none',
    },
  });
  return id;
}

/** @returns starts an authorization from an address: 303 to the sign-in, 400 for an app that is not known */
function opener(server: TestServer): (id: string, address: string) => Promise<number> {
  return async (id, address) => {
    const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
    const url = authorizationUrl(server, { id, redirectUri }, { ...pkce, scope: 'read:posts' });
    const { status } = await fetch(url, { redirect: 'manual', headers: { 'x-forwarded-for': address } });
    return status;
  };
}

test('attack: a network whose names hang does not hold up the documents that others want', async (t) => {
  const site = await startSite({ after });
  let asked = 0;
  const names = await startNameServer(t, (question) => {
    if (!question.name.endsWith('hangs.example')) {
      return [answerTo(question, question.type === 1 ? [Buffer.from([127, 0, 0, 1])] : [])];
    }
    asked += 1;
    return [];
  });
  const server = await startTestServer(t, { NUNCIO_TRUST_PROXY: '127.0.0.1' }, 'dev', undefined, {
    extraCa: authorityCertificate,
    resolveHost: resolveWith(new DnsClient(() => [names.server])),
  });
  const open = opener(server);
  const id = serveApp(site, '/app.json');
  const hostile = '203.0.113.1';
  const hanging = Array.from({ length: 20 }, (_none, index) =>
    open(`https://h${index}.hangs.example/app.json`, hostile),
  );
  // As many names as one network may have looked up at once: two questions each.
  await until(
    async () => asked,
    (count) => count >= 20,
  );
  const first = open(id, hostile);
  const others = await Promise.all(['198.51.100.1', '198.51.100.2'].map((address) => open(id, address)));
  assert.deepEqual(others, [303, 303]);
  assert.equal(await first, 303);
  assert.equal(site.requests('/app.json'), 1);
  assert.deepEqual(new Set(await Promise.all(hanging)), new Set([400]));
});

test('attack: fetches of unknown documents use up those of a network, but not of apps that are known', async (t) => {
  const site = await startSite({ after });
  const behindProxy = { NUNCIO_TRUST_PROXY: '127.0.0.1' };
  const server = await startTestServer(t, behindProxy, 'dev', undefined, siteEgress);
  const open = opener(server);
  const known = serveApp(site, '/known.json');
  const shared = '192.0.2.1';
  assert.equal(await open(known, shared), 303);
  // The provider keeps two hundred documents at most.
  const others = Array.from({ length: 201 }, (_none, index) => serveApp(site, `/other/${index}.json`));
  for (const [index, id] of others.entries()) await open(id, `198.51.100.${index % 8}`);
  for (let index = 0; index < 300; index += 1) await open(site.url(`/unknown/${index}.json`), shared);
  assert.equal(await open(serveApp(site, '/new.json'), shared), 400);
  assert.equal(site.requests('/new.json'), 0);
  // It is used as it is stored, until another network has it fetched.
  assert.equal(await open(known, shared), 303);
  assert.equal(site.requests('/known.json'), 1);
  assert.equal(await open(known, '198.51.100.1'), 303);
  assert.equal(site.requests('/known.json'), 2);
});
