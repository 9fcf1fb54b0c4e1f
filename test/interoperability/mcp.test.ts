/**
 * The client of the MCP SDK, which knows only the URL of an MCP server: from a 401 through the resource's metadata
 * (RFC 9728), the server's metadata (RFC 8414), registration or a client ID metadata document, PKCE and `resource`
 * (RFC 8707) to a tool of that MCP server.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type OAuthClientProvider, UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { OAuthClientInformationMixed, OAuthTokens } from '@modelcontextprotocol/sdk/shared/auth.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { decodeJwt } from 'jose';
import shipped from '../../nuncio.config.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { baseScopes, startMcpServer } from '../support/clients/mcp_server.ts';
import { authorize, createTestAccount, createTestClient, passPages } from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';

const mcpUrl = `http://127.0.0.1:${await freePort()}/mcp`;
const site = await startSite({ after });
const platform = createPlatform({ ...shipped, oauth: { resources: [mcpUrl] } });
const server = await startTestServer({ after }, {}, 'dev', platform, siteEgress);
const account = await createTestAccount(server);
const introspector = await createTestClient(server, {
  grantTypes: ['client_credentials'],
  redirectUris: [],
  scopes: ['read:tokens'],
});
await startMcpServer(
  { after },
  {
    issuer: server.baseUrl,
    url: mcpUrl,
    audience: mcpUrl,
    clientId: introspector.id,
    clientSecret: introspector.secret ?? '',
    cacheSeconds: 0,
    scopes: baseScopes,
    name: 'Notes',
  },
);
const redirectUrl = 'http://127.0.0.1:7777/callback';

interface App {
  provider: OAuthClientProvider;
  /** What the SDK gave the provider to store. */
  kept: { client?: OAuthClientInformationMixed; tokens?: OAuthTokens; redirect?: URL };
  /** Method and URL of each request, in order. */
  requests: string[];
  connect: () => Promise<Client>;
  /** The user signs in and consents on the pages, and the app receives the redirect. */
  allow: () => Promise<URL>;
}

/** Creates an app that stores what the SDK gives it, and nothing else. */
function createApp(fields: Partial<OAuthClientProvider> = {}): App {
  const kept: App['kept'] = {};
  const requests: string[] = [];
  let verifier = '';
  let state = '';
  let transport: StreamableHTTPClientTransport | undefined;
  const provider: OAuthClientProvider = {
    redirectUrl,
    clientMetadata: {
      client_name: 'An MCP client',
      redirect_uris: [redirectUrl],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    },
    state: () => {
      state = crypto.randomUUID();
      return state;
    },
    clientInformation: () => kept.client,
    saveClientInformation: (client) => {
      kept.client = client;
    },
    tokens: () => kept.tokens,
    saveTokens: (tokens) => {
      kept.tokens = tokens;
    },
    redirectToAuthorization: (url) => {
      kept.redirect = url;
    },
    saveCodeVerifier: (value) => {
      verifier = value;
    },
    codeVerifier: () => verifier,
    invalidateCredentials: (what) => {
      if (what === 'all' || what === 'client') delete kept.client;
      if (what === 'all' || what === 'tokens') delete kept.tokens;
    },
    ...fields,
  };
  return {
    provider,
    kept,
    requests,
    async connect() {
      transport = new StreamableHTTPClientTransport(new URL(mcpUrl), {
        authProvider: provider,
        fetch: (url, init) => {
          requests.push(`${init?.method ?? 'GET'} ${url}`);
          return fetch(url, init);
        },
      });
      const client = new Client({ name: 'an app', version: '1.0.0' });
      await client.connect(transport as Transport);
      return client;
    },
    async allow() {
      const browser = new TestBrowser(server.baseUrl);
      assert.ok(kept.redirect);
      const answer = await passPages(browser, await browser.open(kept.redirect.href), account);
      assert.equal(`${answer.origin}${answer.pathname}`, redirectUrl);
      assert.equal(answer.searchParams.get('state'), state);
      assert.equal(answer.searchParams.get('iss'), server.baseUrl);
      await transport?.finishAuth(answer.searchParams.get('code') ?? '');
      return answer;
    },
  };
}

async function callTool(client: Client, name: string): Promise<string> {
  const { content } = await client.callTool({ name });
  return (content as { text: string }[])[0]?.text ?? '';
}

function bearer(token: string): Record<string, string> {
  return { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
}

const metadataUrl = mcpUrl.replace('/mcp', '/.well-known/oauth-protected-resource/mcp');
const serverMetadataUrl = `${server.baseUrl}/.well-known/oauth-authorization-server`;

test('an MCP client gets from a bare 401 to a tool by registering on the way', async () => {
  const app = createApp();
  await assert.rejects(app.connect(), UnauthorizedError);
  // It learned every address from the resource and the server.
  assert.deepEqual(app.requests, [
    `POST ${mcpUrl}`,
    `GET ${metadataUrl}`,
    `GET ${serverMetadataUrl}`,
    `POST ${server.baseUrl}/oauth/register`,
  ]);
  const { kept } = app;
  assert.equal(kept.client?.issuer, server.baseUrl);
  const asked = kept.redirect?.searchParams;
  assert.equal(asked?.get('resource'), mcpUrl);
  assert.equal(asked?.get('code_challenge_method'), 'S256');
  assert.equal(asked?.get('scope'), 'read:posts');

  await app.allow();
  const claims = decodeJwt(kept.tokens?.access_token ?? '');
  assert.deepEqual(
    [claims.aud, claims.iss, claims.client_id],
    [mcpUrl, server.baseUrl, kept.client?.client_id],
  );
  const client = await app.connect();
  const { tools } = await client.listTools();
  assert.deepEqual(
    tools.map(({ name }) => name),
    ['read', 'write'],
  );
  const principal = { accountId: account.id, clientId: kept.client?.client_id, scopes: ['read:posts'] };
  assert.deepEqual(JSON.parse(await callTool(client, 'read')), principal);
  await client.close();

  // The token is valid only for that server.
  const headers = bearer(kept.tokens?.access_token ?? '');
  assert.equal((await fetch(`${server.baseUrl}/api`, { headers })).status, 401);
});

test('an MCP client gets from a bare 401 to a tool by its metadata document', async () => {
  const clientMetadataUrl = site.url('/mcp-client.json');
  const app = createApp({ clientMetadataUrl });
  site.serve('/mcp-client.json', {
    body: { client_id: clientMetadataUrl, ...app.provider.clientMetadata, client_name: 'Known by document' },
  });
  await assert.rejects(app.connect(), UnauthorizedError);
  assert.deepEqual(app.requests, [`POST ${mcpUrl}`, `GET ${metadataUrl}`, `GET ${serverMetadataUrl}`]);
  assert.equal(site.requests('/mcp-client.json'), 0);
  await app.allow();
  assert.equal(site.requests('/mcp-client.json'), 1);
  const client = await app.connect();
  assert.equal(JSON.parse(await callTool(client, 'read')).clientId, clientMetadataUrl);
  await client.close();
});

test('an expired token is refreshed without the user, for the same resource', async () => {
  const app = createApp();
  await assert.rejects(app.connect(), UnauthorizedError);
  await app.allow();
  const { kept } = app;
  const before = kept.tokens as OAuthTokens;
  kept.tokens = { ...before, access_token: `${before.access_token}x` };
  delete kept.redirect;
  const client = await app.connect();
  assert.equal(JSON.parse(await callTool(client, 'read')).accountId, account.id);
  assert.equal(kept.redirect, undefined);
  assert.notEqual(kept.tokens.refresh_token, before.refresh_token);
  assert.equal(decodeJwt(kept.tokens.access_token).aud, mcpUrl);
  await client.close();
});

test('a withdrawn app is refused at the tool and asks the user again', async () => {
  const app = createApp();
  await assert.rejects(app.connect(), UnauthorizedError);
  await app.allow();
  const client = await app.connect();
  const grantId = decodeJwt(app.kept.tokens?.access_token ?? '').grant_id as string;
  await withdrawGrant(server.db, grantId, 'user');
  delete app.kept.redirect;
  await assert.rejects(callTool(client, 'read'), UnauthorizedError);
  assert.ok(app.kept.redirect, 'the refresh was refused too, so that only the user can help');
  await client.close();
});

test('a tool that needs more scopes is reached by asking the user', async () => {
  const clientMetadataUrl = site.url('/mcp-step-up.json');
  const app = createApp({ clientMetadataUrl });
  site.serve('/mcp-step-up.json', {
    body: {
      client_id: clientMetadataUrl,
      ...app.provider.clientMetadata,
      // The SDK's client uses a refresh token if it has one, and a refresh never adds scopes.
      grant_types: ['authorization_code'],
    },
  });
  await assert.rejects(app.connect(), UnauthorizedError);
  await app.allow();
  const client = await app.connect();
  delete app.kept.redirect;
  await assert.rejects(callTool(client, 'write'), UnauthorizedError);
  const asked = (app.kept.redirect as URL | undefined)?.searchParams;
  assert.equal(asked?.get('scope'), 'read:posts write:posts');
  assert.equal(asked?.get('resource'), mcpUrl);
  await app.allow();
  assert.equal(await callTool(client, 'write'), 'written');
  await client.close();
});

test('an app that registered for less gets no more', async () => {
  const clientMetadata = { ...createApp().provider.clientMetadata, grant_types: ['authorization_code'] };
  const app = createApp({ clientMetadata });
  await assert.rejects(app.connect(), UnauthorizedError);
  await app.allow();
  const client = await app.connect();
  await assert.rejects(callTool(client, 'write'), UnauthorizedError);
  const browser = new TestBrowser(server.baseUrl);
  // The user has not interacted with a page yet, so the error page shows a link (RFC 9700 section 4.11.2).
  const page = await browser.open(String(app.kept.redirect));
  assert.equal(page.leftTo, null);
  assert.match(page.text, /<a class="button" href="[^"]*error=invalid_scope/);
  await client.close();
});

test('an app registered by the operator is accepted as it is', async () => {
  const registered = await createTestClient(server, {
    redirectUris: [redirectUrl],
    grantTypes: ['authorization_code', 'refresh_token'],
  });
  const app = createApp();
  app.kept.client = {
    client_id: registered.id,
    client_secret: registered.secret ?? '',
    issuer: server.baseUrl,
  };
  await assert.rejects(app.connect(), UnauthorizedError);
  assert.ok(!app.requests.some((request) => request.endsWith('/oauth/register')));
  await app.allow();
  const client = await app.connect();
  assert.equal(JSON.parse(await callTool(client, 'read')).clientId, registered.id);
  await client.close();
});

test('a token for this server’s API opens nothing at the MCP server', async () => {
  const client = await createTestClient(server);
  const { accessToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  assert.equal((await fetch(`${server.baseUrl}/api`, { headers: bearer(accessToken) })).status, 200);
  const refused = await fetch(mcpUrl, { method: 'POST', headers: bearer(accessToken), body: '{}' });
  assert.equal(refused.status, 401);
  assert.match(refused.headers.get('www-authenticate') ?? '', /^Bearer error="invalid_token"/);
});
