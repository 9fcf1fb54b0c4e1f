/**
 * The bearer guard: what it accepts, its errors (RFC 6750, RFC 9068 section 4), and how soon a withdrawal
 * reaches every node.
 */

// Before anything that imports the engine.
import { defaultAppSettings } from '../../src/apps/settings.ts';
import '../../src/oauth/runtime_warning.ts';

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { generateKeyPair, importJWK, SignJWT } from 'jose';
import { sql } from 'kysely';
import { pino } from 'pino';
import { disableAccount } from '../../src/accounts/account.ts';
import { createClient } from '../../src/clients/client.ts';
import { type Config, loadConfig } from '../../src/config/config.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { Notifications } from '../../src/database/notifications.ts';
import { endClient, withdrawGrant } from '../../src/grants/grant.ts';
import { createScopeCatalogue } from '../../src/grants/scopes.ts';
import { withdrawToken } from '../../src/grants/withdrawals.ts';
import { createApplication } from '../../src/http/application.ts';
import { RateLimiter } from '../../src/http/rate_limit.ts';
import { createAuthorization } from '../../src/oauth/authorization.ts';
import { defaultOAuthSettings } from '../../src/oauth/settings.ts';
import { loadSigningKeys } from '../../src/oauth/signing_keys.ts';
import { readBrand } from '../../src/web/brand.ts';
import { createProviderPages } from '../../src/web/provider_pages.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { createDatabase, type TestDatabase } from '../support/database/database.ts';
import { testSecret } from '../support/servers/server.ts';

const config: Config = loadConfig({ NUNCIO_BASE_URL: 'https://nuncio.example', LOG_LEVEL: 'silent' }, 'dev');
let database: TestDatabase;
let db: Database;
let one: Node;
let two: Node;

interface Node {
  /** Requests a resource that requires `read:posts`, with the given `Authorization`. */
  ask: (authorization?: string, query?: string) => Promise<Answer>;
  close: () => Promise<void>;
}

interface Answer {
  status: number;
  challenge: string | undefined;
  body: Record<string, unknown>;
}

/** A node with one protected resource. */
async function startNode(databaseUrl: string): Promise<Node> {
  const logger = pino({ level: 'silent' });
  const nodeDb = openDatabase({ connectionString: databaseUrl, connectionsMax: 4, onIdleError: () => {} });
  const notifications = new Notifications(databaseUrl, () => {});
  const app = createApplication(config, logger);
  const scopes = createScopeCatalogue([]);
  const { guard, stop } = await createAuthorization({
    app,
    db: nodeDb,
    notifications,
    config,
    secret: testSecret,
    scopes,
    logger,
    pages: createProviderPages(readBrand(undefined, '.', () => {})),
    limiter: new RateLimiter(nodeDb, 0),
    foreignKeys: () => [],
    settings: defaultOAuthSettings,
    apps: defaultAppSettings,
    login: null,
  });
  app.get('/posts', async (request) => {
    const { accountId, clientId } = await guard(request, 'read:posts');
    return { accountId, clientId };
  });
  await notifications.start();
  return {
    async ask(authorization, query = '') {
      const headers = authorization === undefined ? {} : { authorization };
      const response = await app.inject({ url: `/posts${query}`, headers });
      const challenge = response.headers['www-authenticate'] as string | undefined;
      return { status: response.statusCode, challenge, body: response.json() };
    },
    async close() {
      await app.close();
      await stop();
      await notifications.stop();
      await nodeDb.destroy();
    },
  };
}

before(async () => {
  database = await createDatabase();
  db = openDatabase({ connectionString: database.url, connectionsMax: 4, onIdleError: () => {} });
  one = await startNode(database.url);
  two = await startNode(database.url);
});

after(async () => {
  await one.close();
  await two.close();
  await db.destroy();
  await database.drop();
});

const metadata = 'resource_metadata="https://nuncio.example/.well-known/oauth-protected-resource"';

test('oauth 94: without a token the challenge names the metadata and no error', async () => {
  const { status, challenge } = await one.ask();
  assert.equal(status, 401);
  assert.equal(challenge, `Bearer ${metadata}`);
});

test('oauth 95: an invalid token is invalid_token, and a missing scope insufficient_scope', async () => {
  const invalid = await one.ask('Bearer nonsense');
  assert.equal(invalid.status, 401);
  assert.match(invalid.challenge ?? '', /error="invalid_token"/);
  assert.ok(invalid.challenge?.includes(metadata));

  const account = await createTestAccount({ db });
  const client = await createTestClient({ db });
  const { accessToken } = await mintAccessToken(
    { db, config },
    { account, client, scopes: ['read:profile'] },
  );
  const lacking = await one.ask(`Bearer ${accessToken}`);
  assert.equal(lacking.status, 403);
  assert.match(lacking.challenge ?? '', /error="insufficient_scope"/);
  assert.match(lacking.challenge ?? '', /scope="read:posts"/);
});

test('oauth 96: the scheme is case-insensitive, and the token is read from the header alone', async () => {
  const account = await createTestAccount({ db });
  const client = await createTestClient({ db });
  const { accessToken } = await mintAccessToken({ db, config }, { account, client, scopes: ['read:posts'] });
  for (const scheme of ['Bearer', 'bearer', 'BEARER']) {
    const answer = await one.ask(`${scheme} ${accessToken}`);
    assert.deepEqual(answer.body, { accountId: account.id, clientId: client.id });
  }
  for (const authorization of [undefined, `Bearer ${accessToken}`]) {
    const answer = await one.ask(authorization, `?access_token=${accessToken}`);
    assert.equal(answer.status, 400);
    assert.match(answer.challenge ?? '', /error="invalid_request"/);
  }
  assert.equal((await one.ask(`Bearer ${accessToken} ${accessToken}`)).status, 400);
  assert.equal((await one.ask('Basic YTpi')).status, 400);
});

test('oauth 61: a token is refused when it is an id_token, foreign, expired, alg none or HS256', async () => {
  const account = await createTestAccount({ db });
  const client = await createTestClient({ db });
  const scopes = ['read:posts'];
  const now = Math.floor(Date.now() / 1_000);
  const changes = [
    { header: { typ: 'JWT' } },
    { header: { typ: undefined } },
    { claims: { iss: 'https://other.example' } },
    { claims: { aud: 'https://other.example' } },
    { claims: { aud: undefined } },
    { claims: { exp: now - 1 } },
    { claims: { exp: undefined } },
    { claims: { jti: undefined } },
    { header: { kid: 'unknown' } },
  ];
  for (const change of changes) {
    const { accessToken } = await mintAccessToken({ db, config }, { account, client, scopes, ...change });
    const answer = await one.ask(`Bearer ${accessToken}`);
    assert.equal(answer.status, 401, JSON.stringify(change));
    assert.match(answer.challenge ?? '', /error="invalid_token"/);
  }
  const { accessToken } = await mintAccessToken({ db, config }, { account, client, scopes });
  assert.equal((await one.ask(`Bearer ${accessToken}`)).status, 200);

  const [, payload = '', signature = ''] = accessToken.split('.');
  const none = Buffer.from(JSON.stringify({ alg: 'none', typ: 'at+jwt' })).toString('base64url');
  for (const forged of [`${none}.${payload}.`, `${none}.${payload}.${signature}`]) {
    assert.equal((await one.ask(`Bearer ${forged}`)).status, 401);
  }
  const claims = JSON.parse(Buffer.from(payload, 'base64url').toString());
  const hmac = await new SignJWT(claims)
    .setProtectedHeader({ alg: 'HS256', typ: 'at+jwt' })
    .sign(new TextEncoder().encode('a key that somebody made up, 32+ bytes'));
  assert.equal((await one.ask(`Bearer ${hmac}`)).status, 401);
  // An RS256 token by the server's own key is accepted, and only as an access token.
  const rs256 = { account, client, scopes, algorithm: 'RS256' } as const;
  const other = await mintAccessToken({ db, config }, rs256);
  assert.equal((await one.ask(`Bearer ${other.accessToken}`)).status, 200);
  for (const typ of ['JWT', 'logout+jwt', undefined]) {
    const minted = await mintAccessToken({ db, config }, { ...rs256, header: { typ } });
    assert.equal((await one.ask(`Bearer ${minted.accessToken}`)).status, 401, String(typ));
  }
  const { privateKeys } = await loadSigningKeys(db, testSecret);
  for (const { alg: own, ...key } of privateKeys) {
    const kid = String(key.kid);
    const modulus = Buffer.from(String(key.n ?? key.x), 'base64url');
    const stranger = await generateKeyPair(String(own));
    const signers: [string, CryptoKey | Uint8Array][] = [
      ['HS256', modulus],
      [String(own), stranger.privateKey],
    ];
    if (own === 'RS256') {
      for (const alg of ['PS256', 'RS512']) signers.push([alg, (await importJWK(key, alg)) as CryptoKey]);
    }
    for (const [alg, secret] of signers) {
      const token = await new SignJWT(claims).setProtectedHeader({ alg, typ: 'at+jwt', kid }).sign(secret);
      assert.equal((await one.ask(`Bearer ${token}`)).status, 401, `${alg} by the key for ${own}`);
    }
  }
  const changed = Buffer.from(JSON.stringify({ ...claims, scope: 'read:posts write:posts' })).toString(
    'base64url',
  );
  assert.equal((await one.ask(`Bearer ${accessToken.split('.')[0]}.${changed}.${signature}`)).status, 401);
});

test('a token is refused on every node within a second after its grant, token, client or account ends', async () => {
  const scopes = ['read:posts'];
  const endings: [string, (minted: Minted) => Promise<unknown>][] = [
    ['grant', ({ grantId }) => withdrawGrant(db, grantId, 'user')],
    ['token', ({ tokenId }) => withdrawToken(db, tokenId, new Date(Date.now() + 900_000))],
    ['client', ({ clientId }) => endClient(db, clientId)],
    ['account', ({ accountId }) => disableAccount(db, accountId)],
  ];
  interface Minted {
    grantId: string;
    tokenId: string;
    clientId: string;
    accountId: string;
  }
  for (const [what, end] of endings) {
    const account = await createTestAccount({ db });
    const client = await createTestClient({ db });
    const minted = await mintAccessToken({ db, config }, { account, client, scopes });
    const bystander = await mintAccessToken(
      { db, config },
      { account: await createTestAccount({ db }), client: await createTestClient({ db }), scopes },
    );
    const authorization = `Bearer ${minted.accessToken}`;
    for (const node of [one, two]) assert.equal((await node.ask(authorization)).status, 200, what);
    await end({
      grantId: minted.grantId as string,
      tokenId: minted.tokenId,
      clientId: client.id,
      accountId: account.id,
    });
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    for (const node of [one, two]) {
      const answer = await node.ask(authorization);
      assert.equal(answer.status, 401, what);
      assert.match(answer.challenge ?? '', /error="invalid_token"/);
      assert.equal((await node.ask(`Bearer ${bystander.accessToken}`)).status, 200, what);
    }
  }
});

test('revoking a token leaves its grant valid', async () => {
  const account = await createTestAccount({ db });
  const client = await createTestClient({ db });
  const scopes = ['read:posts'];
  const first = await mintAccessToken({ db, config }, { account, client, scopes });
  const second = await mintAccessToken(
    { db, config },
    { account, client, scopes, grantId: first.grantId as string },
  );
  await withdrawToken(db, first.tokenId, new Date(Date.now() + 900_000));
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  assert.equal((await one.ask(`Bearer ${first.accessToken}`)).status, 401);
  assert.equal((await one.ask(`Bearer ${second.accessToken}`)).status, 200);
});

test('a client registered again under an old id gets working tokens', async () => {
  const client = await createTestClient({ db });
  const scopes = ['read:posts'];
  const old = await mintAccessToken({ db, config }, { client, scopes });
  await endClient(db, client.id);
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  await createClient(db, { id: client.id, name: 'again' });
  const fresh = await mintAccessToken({ db, config }, { client, scopes });
  assert.equal((await one.ask(`Bearer ${old.accessToken}`)).status, 401);
  assert.equal((await one.ask(`Bearer ${fresh.accessToken}`)).status, 200);
});

test('a withdrawal reaches a node within a second while notifications are cut', async () => {
  const account = await createTestAccount({ db });
  const client = await createTestClient({ db });
  const minted = await mintAccessToken({ db, config }, { account, client, scopes: ['read:posts'] });
  const authorization = `Bearer ${minted.accessToken}`;
  const deaf = await startNode(database.url);
  try {
    assert.equal((await deaf.ask(authorization)).status, 200);
    await db.transaction().execute(async (tx) => {
      // Without the trigger, the row is written without a notification.
      await sql`alter table withdrawals disable trigger withdrawal_added`.execute(tx);
      await sql`update grants set withdrawn_at = now() where id = ${minted.grantId}`.execute(tx);
      await sql`alter table withdrawals enable trigger withdrawal_added`.execute(tx);
    });
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    assert.equal((await deaf.ask(authorization)).status, 401);
  } finally {
    await deaf.close();
  }
});

test('a node answers 503 when it cannot read the withdrawals', async () => {
  const own = await createDatabase();
  const ownDb = openDatabase({ connectionString: own.url, connectionsMax: 2, onIdleError: () => {} });
  const node = await startNode(own.url);
  const account = await createTestAccount({ db: ownDb });
  const client = await createTestClient({ db: ownDb });
  const minted = await mintAccessToken({ db: ownDb, config }, { account, client, scopes: ['read:posts'] });
  assert.equal((await node.ask(`Bearer ${minted.accessToken}`)).status, 200);
  await ownDb.destroy();
  await own.drop();
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  const answer = await node.ask(`Bearer ${minted.accessToken}`);
  await node.close();
  assert.equal(answer.status, 503);
});
