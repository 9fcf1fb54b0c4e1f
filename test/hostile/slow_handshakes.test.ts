/** Attacks by hosts with certificates that are slow to verify: what a server connects to for strangers costs its own thread nothing. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { createGuardedFetch } from '../../src/egress/fetch.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { authorizationUrl, createPkce } from '../support/clients/oauth.ts';
import { makeLongChain } from '../support/network/long_chain.ts';
import { siteEgress } from '../support/network/site.ts';
import { watchThreads } from '../support/network/started_threads.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp } from '../support/webhooks/apps.ts';

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

/** Milliseconds that this thread, which is the server's, works for requests. The first one, which loads modules, does not count. */
async function workOf(name: string, request: (url: string) => Promise<void>): Promise<number> {
  await request(urlOf(`${name}-first`));
  const [usedBefore, handshakesBefore] = [process.threadCpuUsage(), handshakes];
  for (let index = 0; index < handshakesCount; index += 1) await request(urlOf(`${name}-${index}`));
  const { user, system } = process.threadCpuUsage(usedBefore);
  assert.equal(handshakes - handshakesBefore, handshakesCount, 'each request leads to a handshake');
  return (user + system) / 1_000;
}

async function workWithoutThread(): Promise<number> {
  const { fetch, close } = createGuardedFetch({ ...siteEgress, allowLoopback: true });
  const work = await workOf('direct', (url) => assert.rejects(fetch(url), { code: 'tls_error' }));
  await close();
  return work;
}

test('attack: slow handshakes with hosts of metadata documents do not keep the server busy', async (t) => {
  const threads = watchThreads(t);
  const ask = async (id: string) => {
    const challenge = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
    const url = authorizationUrl(server, { id, redirectUri: `${id}/back` }, challenge);
    const { response } = await new TestBrowser(server.baseUrl).open(url);
    assert.equal(response.status, 400);
  };
  const [work, comparison] = [await workOf('document', ask), await workWithoutThread()];
  t.diagnostic(`${work} ms, ${comparison} ms without a thread`);
  assert.ok(work < comparison / 2, `${work} ms, ${comparison} ms without a thread`);
  assert.deepEqual(threads, ['fetches']);
});

test('attack: slow handshakes with hosts of new subscriptions do not keep the server busy', async (t) => {
  const threads = watchThreads(t);
  const app = await createApp(server);
  const ask = async (url: string) => {
    const json = { kinds: ['push'], url, handshake: true };
    const { status, text } = await app.request('POST', '/subscriptions', { json });
    assert.equal(status, 422, text);
    assert.match(text, /did not echo the challenge: the request failed: tls_error/);
  };
  const [work, comparison] = [await workOf('subscription', ask), await workWithoutThread()];
  t.diagnostic(`${work} ms, ${comparison} ms without a thread`);
  assert.ok(work < comparison / 2, `${work} ms, ${comparison} ms without a thread`);
  assert.deepEqual(threads, ['challenges']);
});
