/**
 * Client libraries of the Model Context Protocol, unmodified, which know only the URL of the endpoint: they sign a user in and
 * use the tools. Each speaks the versions of the protocol that it prefers.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { auth, createMCPClient } from '@ai-sdk/mcp';
import * as modern from '@modelcontextprotocol/client';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { decodeJwt } from 'jose';
import { createMcpApp, type McpApp } from '../support/clients/mcp_app.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const url = `${server.baseUrl}/mcp`;

interface Result {
  content: { type: string; text?: string }[];
  structuredContent?: Record<string, unknown>;
  isError?: boolean;
}

interface Connection {
  list: () => Promise<string[]>;
  call: (name: string, given: Record<string, unknown>) => Promise<Result>;
  close: () => Promise<unknown>;
}

interface Library {
  connect: (app: McpApp, requests: string[]) => Promise<Connection>;
  /** Redeems the code. */
  finish: (app: McpApp, answer: URLSearchParams) => Promise<unknown>;
  /** Whether it begins with `initialize`. */
  initializes: boolean;
}

/** Notes the method of each message. */
function recordingFetch(requests: string[]): typeof fetch {
  return (to, init) => {
    if (String(to) === url && typeof init?.body === 'string') requests.push(JSON.parse(init.body).method);
    return fetch(to, init);
  };
}

/** The library of the protocol's authors, second generation. */
function modernLibrary(mode: 'legacy' | 'auto'): Library {
  const transportOf = ({ provider }: McpApp, requests: string[]) =>
    new modern.StreamableHTTPClientTransport(new URL(url), {
      authProvider: provider,
      fetch: recordingFetch(requests),
    });
  return {
    initializes: mode === 'legacy',
    async connect(app, requests) {
      const client = new modern.Client(
        { name: 'a client', version: '1.0.0' },
        { versionNegotiation: { mode } },
      );
      await client.connect(transportOf(app, requests));
      return {
        list: async () => (await client.listTools()).tools.map(({ name }) => name),
        call: async (name, given) => (await client.callTool({ name, arguments: given })) as Result,
        close: () => client.close(),
      };
    },
    finish: (app, answer) => {
      const transport = transportOf(app, []);
      return transport.finishAuth(answer);
    },
  };
}

const libraries: Record<string, Library> = {
  '@modelcontextprotocol/sdk': {
    initializes: true,
    async connect({ provider }, requests) {
      const client = new Client({ name: 'a client', version: '1.0.0' });
      const transport = new StreamableHTTPClientTransport(new URL(url), {
        authProvider: provider,
        fetch: recordingFetch(requests),
      });
      await client.connect(transport as Transport);
      return {
        list: async () => (await client.listTools()).tools.map(({ name }) => name),
        call: async (name, given) => (await client.callTool({ name, arguments: given })) as unknown as Result,
        close: () => client.close(),
      };
    },
    finish: ({ provider }, answer) =>
      new StreamableHTTPClientTransport(new URL(url), { authProvider: provider }).finishAuth(
        answer.get('code') ?? '',
      ),
  },
  '@modelcontextprotocol/client': modernLibrary('legacy'),
  '@modelcontextprotocol/client with negotiation': modernLibrary('auto'),
  '@ai-sdk/mcp': {
    initializes: false,
    async connect({ provider }, requests) {
      const client = await createMCPClient({
        transport: { type: 'http', url, authProvider: provider, fetch: recordingFetch(requests) },
      });
      return {
        list: async () => Object.keys(await client.tools()),
        call: async (name, given) => (await client.callTool({ name, arguments: given })) as Result,
        close: () => client.close(),
      };
    },
    finish: ({ provider }, answer) =>
      auth(provider, {
        serverUrl: url,
        authorizationCode: answer.get('code') ?? '',
        callbackState: answer.get('state') ?? '',
        callbackIssuer: answer.get('iss') ?? '',
      }),
  },
};

const postTools = [
  'articles_list',
  'article_get',
  'article_create',
  'article_update',
  'article_delete',
  'article_publish',
  'article_comments_list',
  'article_comments_create',
];

/** Connects, and signs the user in where the server asks for it. */
async function signIn(library: Library, app: McpApp, requests: string[]): Promise<Connection> {
  const account = await createTestAccount(server);
  await assert.rejects(library.connect(app, []), /[Uu]nauthorized|Authorization/);
  await library.finish(app, await app.allow(server.baseUrl, account));
  return library.connect(app, requests);
}

for (const [name, library] of Object.entries(libraries)) {
  test(`agents 22, 73: ${name} signs a user in by registering itself, and uses the tools`, async () => {
    const app = createMcpApp();
    const requests: string[] = [];
    const connection = await signIn(library, app, requests);
    assert.equal(decodeJwt(app.kept.tokens?.access_token ?? '').aud, url);
    assert.equal(requests[0], library.initializes ? 'initialize' : 'server/discover');
    assert.equal(requests.includes('initialize'), library.initializes);
    assert.deepEqual(await connection.list(), postTools);

    const created = await connection.call('article_create', { title: 'Written by an agent' });
    assert.equal(created.isError ?? false, false);
    const article = created.structuredContent as { id: string; state: string };
    assert.equal(article.state, 'draft');
    assert.deepEqual(JSON.parse(created.content[0]?.text ?? ''), article);
    await connection.call('article_publish', { id: article.id });
    const listed = await connection.call('articles_list', { state: 'published' });
    const { items, next } = listed.structuredContent as { items: { id: string }[]; next: string | null };
    assert.deepEqual([items.some(({ id }) => id === article.id), next], [true, null]);

    const again = await connection.call('article_publish', { id: article.id });
    assert.equal(again.isError, true);
    assert.equal(again.content[0]?.text, 'The article is published already.');
    await connection.close();
  });
}

for (const name of ['@modelcontextprotocol/sdk', '@modelcontextprotocol/client with negotiation']) {
  test(`agents 22, 73: ${name} signs a user in by its metadata document`, async () => {
    const path = `/${Object.keys(libraries).indexOf(name)}.json`;
    const clientMetadataUrl = site.url(path);
    const app = createMcpApp({ clientMetadataUrl });
    site.serve(path, { body: { client_id: clientMetadataUrl, ...app.provider.clientMetadata } });
    const connection = await signIn(libraries[name] as Library, app, []);
    assert.equal(decodeJwt(app.kept.tokens?.access_token ?? '').client_id, clientMetadataUrl);
    assert.deepEqual(await connection.list(), postTools);
    await connection.close();
  });
}
