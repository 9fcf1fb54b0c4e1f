/** Documents that several networks want, while one of them has used up its turns. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { DnsClient } from '../../../src/egress/dns/client.ts';
import { resolveWith } from '../../../src/egress/resolve.ts';
import { authorizationUrl, createPkce } from '../../support/clients/oauth.ts';
import { authorityCertificate } from '../../support/network/certificates.ts';
import { answerTo, startNameServer } from '../../support/network/name_server.ts';
import { startSite } from '../../support/network/site.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { until } from '../../support/webhooks/apps.ts';

const redirectUri = 'https://reader.apps.example/callback';

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
  const open = async (id: string, address: string) => {
    const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
    const url = authorizationUrl(server, { id, redirectUri }, { ...pkce, scope: 'read:posts' });
    const { status } = await fetch(url, { redirect: 'manual', headers: { 'x-forwarded-for': address } });
    return status;
  };
  const id = site.url('/app.json');
  site.serve('/app.json', {
    body: {
      client_id: id,
      client_name: 'Reader',
      redirect_uris: [redirectUri],
      grant_types: ['authorization_code'],
      token_endpoint_auth_method: 'none',
    },
  });
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
