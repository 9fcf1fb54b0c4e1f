/**
 * The demo without a browser, step by step: authorize, get tokens, call the API, publish, receive and verify deliveries,
 * and withdraw access. Fails at the first step that does not work.
 */

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import Fastify from 'fastify';
import * as oidc from 'openid-client';
import { Api, ApiError } from './api.ts';
import { Visitor } from './browserless.ts';
import { Inbox } from './inbox.ts';
import { createUser, deleteClient, type Nuncio, registerClient } from './nuncio.ts';
import { beginAuthorization, discover, finishAuthorization, scopes } from './oauth.ts';
import { libraries, shapes } from './verify.ts';

/** Milliseconds to wait for deliveries, and for a withdrawal to take effect. */
const patienceMs = 15_000;

/** @throws the error of the failed step */
export async function runOnce(nuncio: Nuncio): Promise<void> {
  const { baseUrl } = nuncio;
  step(nuncio.started ? `started a server at ${baseUrl}` : `found a server at ${baseUrl}`);

  const inbox = new Inbox();
  const subscriber = Fastify({ forceCloseConnections: true });
  inbox.register(subscriber);
  await subscriber.listen({ port: 0, host: '127.0.0.1' });
  const url = `http://127.0.0.1:${(subscriber.server.address() as AddressInfo).port}`;
  const redirectUri = `${url}/callback`;

  const client = await registerClient(redirectUri, scopes);
  try {
    step(`registered the app as client ${client.client_id}`);
    await walk(baseUrl, url, redirectUri, client, inbox);
  } finally {
    await deleteClient(client.client_id);
    await subscriber.close();
  }
}

async function walk(
  baseUrl: string,
  url: string,
  redirectUri: string,
  client: { client_id: string; client_secret: string },
  inbox: Inbox,
): Promise<void> {
  const login = {
    email: `reader-${randomBytes(4).toString('hex')}@example.com`,
    password: randomBytes(12).toString('hex'),
  };
  await createUser(login.email, login.password);
  step(`created the user ${login.email}`);

  const configuration = await discover(baseUrl, client.client_id, client.client_secret);
  step(`read the server’s metadata with openid-client (issuer ${configuration.serverMetadata().issuer})`);

  const pending = await beginAuthorization(configuration, redirectUri);
  const callback = await new Visitor(login).logInAndConfirm(pending.url, redirectUri);
  assert.ok(callback.searchParams.has('code'), `the redirect has no code: ${callback.search}`);
  step('logged in, confirmed the scopes, and was sent back with a code');

  const tokens = await finishAuthorization(configuration, callback, pending);
  assert.equal(tokens.expires_in, 900);
  assert.ok(tokens.refresh_token);
  step(`exchanged the code for tokens (access token for ${tokens.expires_in} seconds, refresh token)`);

  const api = new Api(baseUrl, tokens.access_token);
  const me = await api.whoAmI();
  assert.deepEqual([...me.scopes].sort(), [...scopes].sort());
  step(`called GET /api as account ${me.account?.id}`);

  for (const shape of shapes) {
    const subscription = await api.subscribe(`${url}/webhooks/${shape}/${shape}`, ['article.*'], shape);
    inbox.expect(shape, await api.secretOf(subscription));
  }
  step(`subscribed three URLs to article.*, signed as ${shapes.join(', ')}`);

  const article = await api.createArticle('What the envoy brought', 'It came signed.');
  assert.equal(article.state, 'draft');
  const published = await api.publish(article);
  assert.equal(published.state, 'published');
  step(`created the article ${article.id} and published it by its own link`);

  await until(() => inbox.received.length >= 2 * shapes.length, 'six deliveries');
  assert.equal(inbox.refused, 0, 'a delivery had a wrong signature');
  for (const shape of shapes) {
    const received = inbox.received.filter((delivery) => delivery.shape === shape);
    assert.deepEqual(received.map(({ kind }) => kind).sort(), ['article.created', 'article.published']);
    assert.deepEqual(received.map(({ sequence }) => sequence).sort(), [1, 2]);
    for (const { body } of received)
      assert.equal((body as { article: { id: string } }).article.id, article.id);
    step(`received both events signed as ${shape}, verified by ${libraries[shape]}`);
  }

  const refreshed = await oidc.refreshTokenGrant(configuration, tokens.refresh_token);
  assert.notEqual(refreshed.refresh_token, tokens.refresh_token);
  step('refreshed the tokens; the refresh token was replaced');

  await oidc.tokenRevocation(configuration, refreshed.refresh_token ?? '');
  await until(() => isRefused(new Api(baseUrl, refreshed.access_token)), 'the API to refuse the token');
  step('withdrew access: the API refuses the tokens, and the subscriptions have ended');
}

async function isRefused(api: Api): Promise<boolean> {
  try {
    await api.whoAmI();
    return false;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return true;
    throw error;
  }
}

async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const deadline = Date.now() + patienceMs;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`timeout after ${patienceMs / 1000} s: waiting for ${what}`);
    await sleep(50);
  }
}

function step(text: string): void {
  process.stdout.write(`✓ ${text}\n`);
}
