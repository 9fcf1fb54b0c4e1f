/**
 * Node.js takes quadratic time for the host of a URL in letters of other scripts. Anybody could name such a URL as an app: 150 ms of the
 * processor for each request of 16 KB, and a second for one of 54 KB with Node.js 22.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createTestClient } from '../support/clients/oauth.ts';
import { timesAsMuch } from '../support/processor_time.ts';
import { startTestServer } from '../support/servers/server.ts';

/** As many as Node.js 24 and later still encode. */
const letters = 5_400;
/** As many as a pushed request can have. */
const pushedLetters = 1_700;
const timesMax = 5;

const server = await startTestServer({ after });
const { id, secret } = await createTestClient(server);
const authorization = `Basic ${Buffer.from(`${id}:${secret}`).toString('base64')}`;

const hostsOf = (length: number) => ({
  long: Array.from({ length }, (_none, index) => String.fromCodePoint(0x4e00 + index)).join(''),
  // As many bytes.
  plain: 'a'.repeat(length * 3),
});

async function post(path: string, form: string, headers: Record<string, string> = {}): Promise<Response> {
  const response = await fetch(server.baseUrl + path, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded', ...headers },
    body: form,
  });
  await response.arrayBuffer();
  return response;
}

const requests: Record<string, (host: string) => Promise<Response>> = {
  'the client_id of a token request': (host) =>
    post('/oauth/token', `grant_type=authorization_code&client_id=https://${host}/app`),
  'the client_id of a pushed request': (host) =>
    post('/oauth/par', `response_type=code&client_id=https://${host}/app`),
  'the redirect_uri of a pushed request': (host) =>
    post('/oauth/par', `client_id=${id}&response_type=code&redirect_uri=https://${host}/`, { authorization }),
  'the resource of a token request': (host) =>
    post('/oauth/token', `grant_type=client_credentials&resource=https://${host}/`, { authorization }),
};

for (const [name, send] of Object.entries(requests)) {
  test(`attack: a long host of another script as ${name}`, async () => {
    const hosts = hostsOf(name.endsWith('pushed request') ? pushedLetters : letters);
    for (const host of [hosts.long, hosts.plain]) {
      const { status } = await send(host);
      assert.ok(status === 400 || status === 401, String(status));
    }
    const times = await timesAsMuch(
      () => send(hosts.long),
      () => send(hosts.plain),
    );
    assert.ok(times < timesMax, `${times} times as much`);
  });
}
