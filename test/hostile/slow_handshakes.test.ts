/** Attacks by hosts with certificates that are slow to verify: a connection to them costs little. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { connect } from 'node:tls';
import { TestBrowser } from '../support/browser/browser.ts';
import { authorizationUrl, createPkce } from '../support/clients/oauth.ts';
import { makeLongChain } from '../support/network/certificate_chain.ts';
import { siteEgress } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';

const handshakesCount = 5;

const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
let handshakes = 0;
const slow = createServer(makeLongChain());
slow.on('connection', () => {
  handshakes += 1;
});
await once(slow.listen(0, '127.0.0.1'), 'listening');
after(() => slow.close());
const { port } = slow.address() as AddressInfo;
const urlOf = (name: string) => `https://${name}.apps.example:${port}/app.json`;

/** Milliseconds of processor time of this process for requests. The first one, which loads modules, does not count. */
async function workOf(name: string, request: (url: string) => Promise<void>): Promise<number> {
  await request(urlOf(`${name}-first`));
  const [usedBefore, handshakesBefore] = [process.cpuUsage(), handshakes];
  for (let index = 0; index < handshakesCount; index += 1) await request(urlOf(`${name}-${index}`));
  const { user, system } = process.cpuUsage(usedBefore);
  assert.ok(handshakes - handshakesBefore >= handshakesCount, 'each request leads to a handshake');
  return (user + system) / 1_000;
}

/** What OpenSSL takes for such a host. */
const comparison = await workOf('openssl', async () => {
  const socket = connect({ port, host: '127.0.0.1', servername: 'slow.apps.example' });
  await assert.rejects(once(socket, 'secureConnect'), { code: 'SELF_SIGNED_CERT_IN_CHAIN' });
});
const assertCheap = (work: number) => {
  assert.ok(work < comparison / 2, `${work} ms, ${comparison} ms in OpenSSL`);
};

test('attack: slow handshakes with hosts of metadata documents do not keep the server busy', async () => {
  const ask = async (id: string) => {
    const challenge = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
    const url = authorizationUrl(server, { id, redirectUri: `${id}/back` }, challenge);
    const { response } = await new TestBrowser(server.baseUrl).open(url);
    assert.equal(response.status, 400);
  };
  assertCheap(await workOf('document', ask));
});

test('attack: slow handshakes with hosts of new subscriptions do not keep the server busy', async () => {
  const app = await createApp(server);
  const ask = async (url: string) => {
    const json = { kinds: ['push'], url, handshake: true };
    const { status, text } = await app.request('POST', '/subscriptions', { json });
    assert.equal(status, 422, text);
    assert.match(text, /did not echo the challenge: the request failed: tls_error/);
  };
  assertCheap(await workOf('subscription', ask));
});

test('attack: slow handshakes with subscribers do not keep the engine busy', async () => {
  const app = await createApp(server);
  const ask = async (url: string) => {
    const { id } = await subscribe(app, { kinds: ['push'], url });
    const sent = await app.request('POST', `/subscriptions/${id}/test`, { json: {} });
    assert.equal(sent.status, 202, sent.text);
    const before = handshakes;
    await until(
      async () => handshakes,
      (count) => count > before,
    );
  };
  assertCheap(await workOf('delivery', ask));
});
