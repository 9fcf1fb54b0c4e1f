/** `nuncio/protect` in Express, Fastify and bare `node:http`, with the same behavior over HTTP. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type RequestListener, type Server, request as sendRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import express from 'express';
import Fastify from 'fastify';
import * as oauth from 'oauth4webapi';
import { createProtector, type Protector } from '../../src/protect/protect.ts';
import { createProof, createProofKey } from '../support/clients/dpop_proof.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);

/** Each serves `GET /v1/notes` (requires `read:posts`), its metadata, and `GET /open`, which is not protected. */
const frameworks: Record<string, (protect: Protector) => Promise<RequestListener>> = {
  async express(protect) {
    const app = express();
    const notes = express.Router();
    notes.get('/notes', protect.express('read:posts'), (request, response) => {
      response.json({ account: protect.principal(request).accountId });
    });
    app.use(protect.wellKnown);
    app.use('/v1', notes);
    app.get('/open', (request, response) => {
      response.json({ account: protect.principal(request).accountId });
    });
    app.use(((_error, _request, response, _next) => {
      response.status(500).end();
    }) satisfies express.ErrorRequestHandler);
    return app;
  },
  async fastify(protect) {
    const app = Fastify();
    after(() => app.close());
    app.get('/v1/notes', { onRequest: protect.fastify('read:posts') }, async (request) => {
      return { account: protect.principal(request).accountId };
    });
    app.get('/open', async (request) => ({ account: protect.principal(request).accountId }));
    app.get(protect.metadata.path, async (_request, reply) => {
      return reply.headers(protect.metadata.headers).send(protect.metadata.document);
    });
    await app.ready();
    return app.routing;
  },
  async 'node:http'(protect) {
    const notes = protect.http(['read:posts'], (_request, response, { accountId }) => {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ account: accountId }));
    });
    return (request, response) => {
      if (protect.wellKnown(request, response)) return;
      if (request.url?.startsWith('/v1/notes')) {
        void notes(request, response);
        return;
      }
      assert.throws(() => protect.principal(request), /was not checked/);
      response.writeHead(500).end();
    };
  },
};

/** Starts a server whose `url` is the address that clients use. */
async function serve(build: (protect: Protector) => Promise<RequestListener>, secret?: string) {
  const http: Server = createServer();
  http.listen(0, '127.0.0.1');
  await once(http, 'listening');
  after(() => {
    http.close();
    http.closeAllConnections();
  });
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const protect = createProtector({
    issuer: server.baseUrl,
    url,
    audience: server.baseUrl,
    offline: true,
    scopes: ['read:posts'],
    dpopNonceSecret: secret,
  });
  http.on('request', await build(protect));
  return url;
}

async function mint(scope: string, claims: Record<string, unknown> = {}): Promise<string> {
  return (await mintAccessToken(server, { account, client, scopes: [scope], claims })).accessToken;
}

for (const [name, build] of Object.entries(frameworks)) {
  test(`${name}: a valid token passes, and every other gets the right response`, async () => {
    const url = await serve(build);
    const ask = async (authorization?: string, path = '/v1/notes') => {
      const headers = authorization === undefined ? {} : { authorization };
      const response = await fetch(url + path, { headers });
      const body = (await response.json().catch(() => null)) as Record<string, unknown> | null;
      return { response, body, challenge: response.headers.get('www-authenticate') };
    };
    const good = await ask(`Bearer ${await mint('read:posts')}`);
    assert.equal(good.response.status, 200);
    assert.deepEqual(good.body, { account: account.id });

    const none = await ask();
    assert.equal(none.response.status, 401);
    assert.match(none.challenge ?? '', new RegExp(`^Bearer resource_metadata="${url}/`));
    assert.match(none.response.headers.get('content-type') ?? '', /^application\/problem\+json/);
    assert.equal(none.body?.code, 'no-token');

    const poor = await ask(`Bearer ${await mint('write:posts')}`);
    assert.equal(poor.response.status, 403);
    assert.equal(poor.body?.code, 'insufficient-scope');

    const query = await ask(undefined, '/v1/notes?access_token=x');
    assert.equal(query.response.status, 400);

    const open = await ask(`Bearer ${await mint('read:posts')}`, '/open');
    assert.equal(open.response.status, 500, 'a route without protection has no principal');
  });

  test(`${name}: two Authorization headers are refused, though Node drops the second`, async () => {
    const url = await serve(build);
    const token = await mint('read:posts');
    const request = sendRequest(`${url}/v1/notes`);
    request.setHeader('authorization', [`Bearer ${token}`, `Bearer ${token}`]);
    request.end();
    const [response] = await once(request, 'response');
    response.resume();
    assert.equal(response.statusCode, 400);
  });

  test(`${name}: a DPoP proof covers the whole path, and the response carries the nonce`, async () => {
    const url = await serve(build, 'a secret of the notes, 32 bytes or more');
    const key = await createProofKey();
    const token = await mint('read:posts', { cnf: { jkt: key.jkt } });
    const request = { method: 'GET', url: `${url}/v1/notes`, token };
    const send = async (nonce?: string) =>
      fetch(`${request.url}?page=1`, {
        headers: {
          authorization: `DPoP ${token}`,
          dpop: await createProof(key, request, { claims: { nonce } }),
        },
      });
    const first = await send();
    assert.equal(first.status, 401);
    assert.match(first.headers.get('www-authenticate') ?? '', /^DPoP error="use_dpop_nonce"/);
    const second = await send(first.headers.get('dpop-nonce') as string);
    assert.equal(second.status, 200);
    assert.deepEqual(await second.json(), { account: account.id });
  });

  test(`${name}: oauth 97: (protect) a client of RFC 9728 finds the issuer from the 401 alone`, async () => {
    const url = await serve(build);
    const refusal = await fetch(`${url}/v1/notes`);
    const named = /resource_metadata="([^"]+)"/.exec(refusal.headers.get('www-authenticate') ?? '')?.[1];
    const options = { [oauth.allowInsecureRequests]: true };
    const response = await oauth.resourceDiscoveryRequest(new URL(url), options);
    assert.equal(response.url, named);
    assert.equal(response.headers.get('access-control-allow-origin'), '*');
    const metadata = await oauth.processResourceDiscoveryResponse(new URL(url), response);
    assert.deepEqual(metadata.authorization_servers, [server.baseUrl]);
    assert.deepEqual(metadata.scopes_supported, ['read:posts']);
    assert.deepEqual(metadata.bearer_methods_supported, ['header']);
  });
}
