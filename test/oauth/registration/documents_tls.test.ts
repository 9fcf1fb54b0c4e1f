/** Metadata documents from an HTTPS server whose authority a server process trusts through `NODE_EXTRA_CA_CERTS`. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Environment } from '../../../src/config/environment.ts';
import { TestBrowser } from '../../support/browser/browser.ts';
import { authorizationUrl, createPkce } from '../../support/clients/oauth.ts';
import { prepareProcess, startProcess } from '../../support/servers/process.ts';

const folder = new URL('../../support/network/certificates/', import.meta.url);
const pem = (name: string) => readFileSync(new URL(name, folder), 'utf8');
const redirectUri = 'https://reader.apps.example/callback';

/** An app on `localhost` with a certificate. */
async function startApp(t: TestContext, certificate: string) {
  const requests: string[] = [];
  const options = { key: pem(`${certificate}.key`), cert: pem(`${certificate}.pem`) };
  const server = createServer(options, ({ url = '' }, response) => {
    requests.push(url);
    if (url === '/moved.json') return response.writeHead(302, { location: '/client.json' }).end();
    const body = { client_id: idOf(url), client_name: 'Reader by document', redirect_uris: [redirectUri] };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const idOf = (path: string) => `https://localhost:${(server.address() as AddressInfo).port}${path}`;
  return { requests, idOf };
}

test('a metadata document is read over TLS with a trusted certificate for its host, and over no other', async (t) => {
  const trusted: Environment & { NODE_EXTRA_CA_CERTS: string } = {
    NODE_EXTRA_CA_CERTS: fileURLToPath(new URL('ca.pem', folder)),
  };
  const host = await prepareProcess(t, trusted);
  await startProcess(t, ['start'], host.settings).ready();
  const open = (id: string) => {
    const challenge = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
    return new TestBrowser(host.baseUrl).open(authorizationUrl(host, { id, redirectUri }, challenge));
  };
  const good = await startApp(t, 'good');
  assert.match((await open(good.idOf('/client.json'))).text, /name="password"/);
  assert.deepEqual(good.requests, ['/client.json']);
  const moved = await open(good.idOf('/moved.json'));
  assert.equal(moved.response.status, 400);
  assert.deepEqual(good.requests, ['/client.json', '/moved.json'], 'the redirect is not followed');
  for (const certificate of ['self-signed', 'expired', 'wrong-host']) {
    const app = await startApp(t, certificate);
    const { response, text } = await open(app.idOf('/client.json'));
    assert.equal(response.status, 400, certificate);
    assert.match(text, /invalid_client/, certificate);
    assert.doesNotMatch(text, /certificate|altnames|SSL/i, certificate);
    assert.deepEqual(app.requests, [], certificate);
  }
});
