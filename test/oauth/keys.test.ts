/** Signing keys, the audit log, the log of refusals, and housekeeping. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeProtectedHeader, type JWK } from 'jose';
import { sql } from 'kysely';
import { pino } from 'pino';
import { readAuditLog } from '../../src/audit/audit_log.ts';
import { rotateClientSecret } from '../../src/clients/client_secret.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { deleteSupersededGrants, runHousekeeping } from '../../src/oauth/housekeeping.ts';
import { rotateSigningKeys } from '../../src/oauth/signing_keys.ts';
import { createPlatform, loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { rotateDeliveryKey } from '../../src/webhooks/sending/delivery_key.ts';
import {
  authorize,
  clientToken,
  createTestAccount,
  createTestClient,
  postForm,
} from '../support/clients/oauth.ts';
import { freePort, startTestServer, testSecret } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);

/** Only keys for tokens; the delivery key has another type. */
async function publishedIds(baseUrl: string): Promise<string[]> {
  const answer = await fetch(`${baseUrl}/oauth/jwks`);
  const { keys } = (await answer.json()) as { keys: { kid: string; kty: string }[] };
  return keys.filter(({ kty }) => kty !== 'OKP').map((key) => key.kid);
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 100; tries += 1) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail(what);
}

test('oauth 71: key rotation publishes first, signs later, and never refuses a valid token on any node', async (context) => {
  const lines: string[] = [];
  const port = await freePort();
  const second = await startServer({
    config: { ...server.config, port },
    platform: await loadPlatform(null),
    databaseUrl: server.databaseUrl,
    secret: testSecret,
    logger: pino({ level: 'error' }, { write: (line: string) => void lines.push(line) }),
  });
  context.after(() => second.close());
  const nodes = [server.baseUrl, second.address];
  const open = async (baseUrl: string, token: string) =>
    (await fetch(`${baseUrl}/api`, { headers: { authorization: `Bearer ${token}` } })).status;

  const before = await publishedIds(server.baseUrl);
  const old = await clientToken(server, client, ['read:posts']);
  const made = await rotateSigningKeys(server.db, testSecret, 2);
  for (const baseUrl of nodes) {
    await until('both nodes publish old and new', async () => {
      const ids = await publishedIds(baseUrl);
      return [...before, ...made].every((id) => ids.includes(id));
    });
  }
  const between = await clientToken(server, client, ['read:posts']);
  assert.ok(before.includes(decodeProtectedHeader(between).kid ?? ''), 'the old key still signs');
  await until('the new key signs', async () => {
    const token = await clientToken(server, client, ['read:posts']);
    for (const baseUrl of nodes) {
      for (const each of [old, between, token]) assert.equal(await open(baseUrl, each), 200);
    }
    return made.includes(decodeProtectedHeader(token).kid ?? '');
  });
  const idToken = (await authorize(server, { account, client, scopes: ['openid'] })).idToken ?? '';
  assert.ok(made.includes(decodeProtectedHeader(idToken).kid ?? ''));
  await sql`update signing_keys set expires_at = now() where id = any(${before})`.execute(server.db);
  await until('the old keys are gone', async () => {
    const ids = await publishedIds(server.baseUrl);
    return !before.some((id) => ids.includes(id));
  });
  assert.equal(await open(server.baseUrl, old), 401);
  assert.deepEqual(lines, []);
});

test('oauth 60: with RS256 both nodes accept tokens of both algorithms before and after a rotation', async (context) => {
  const elsewhere = 'https://notes.example';
  const port = await freePort();
  const config = { ...server.config, port };
  const second = await startServer({
    config,
    platform: createPlatform({
      oauth: {
        accessTokenAlgorithm: 'RS256',
        resources: [{ url: elsewhere, accessTokenAlgorithm: 'ES256' }],
      },
    }),
    databaseUrl: server.databaseUrl,
    secret: testSecret,
    logger: pino({ level: 'silent' }),
  });
  context.after(() => second.close());
  const nodes = [server.baseUrl, second.address];
  const tokenAt = (baseUrl: string) => clientToken({ baseUrl }, client, ['read:posts']);
  const isOpen = async (token: string) => {
    for (const baseUrl of nodes) {
      const { status } = await fetch(`${baseUrl}/api`, { headers: { authorization: `Bearer ${token}` } });
      assert.equal(status, 200, JSON.stringify(decodeProtectedHeader(token)));
    }
  };
  const publicKeys = async () => {
    const { keys } = (await (await fetch(`${server.baseUrl}/oauth/jwks`)).json()) as { keys: JWK[] };
    return keys;
  };

  const [es256, rs256] = [await tokenAt(server.baseUrl), await tokenAt(second.address)];
  for (const [token, algorithm] of [
    [es256, 'ES256'],
    [rs256, 'RS256'],
  ] as const) {
    const { alg, typ, kid } = decodeProtectedHeader(token);
    assert.deepEqual([alg, typ], [algorithm, 'at+jwt']);
    const key = (await publicKeys()).find((candidate) => candidate.kid === kid);
    assert.deepEqual([key?.alg, key?.use], [algorithm, 'sig']);
    await isOpen(token);
    for (const baseUrl of nodes) {
      const { body } = await postForm({ baseUrl }, '/oauth/introspect', client, { token });
      assert.equal(body.active, true);
    }
  }
  const { body } = await postForm({ baseUrl: second.address }, '/oauth/token', client, {
    grant_type: 'client_credentials',
    scope: 'read:posts',
    resource: elsewhere,
  });
  assert.equal(decodeProtectedHeader(String(body.access_token)).alg, 'ES256', 'an API has its own');

  const made = await rotateSigningKeys(server.db, testSecret, 0);
  // Without a delay, the node that reads the new keys first signs with them before the other knows them.
  for (const baseUrl of nodes) {
    await until('both nodes publish the new keys', async () => {
      const ids = await publishedIds(baseUrl);
      return made.every((id) => ids.includes(id));
    });
  }
  await until('the new RS256 key signs', async () => {
    const token = await tokenAt(second.address);
    await isOpen(token);
    return made.includes(decodeProtectedHeader(token).kid ?? '');
  });
  await isOpen(es256);
  await isOpen(rs256);
  await postForm(server, '/oauth/revoke', client, { token: rs256 });
  await until('the revoked RS256 token is refused everywhere', async () => {
    const statuses = nodes.map(async (baseUrl) => {
      return (await fetch(`${baseUrl}/api`, { headers: { authorization: `Bearer ${rs256}` } })).status;
    });
    return (await Promise.all(statuses)).every((status) => status === 401);
  });
});

test('accessTokenAlgorithm is ES256 or RS256 and nothing else', () => {
  for (const wrong of ['none', 'HS256', 'PS256', 'EdDSA', '', null, ['RS256']]) {
    for (const oauth of [
      { accessTokenAlgorithm: wrong },
      { resources: [{ url: 'https://notes.example', accessTokenAlgorithm: wrong }] },
    ]) {
      assert.throws(() => createPlatform({ oauth: oauth as never }), /accessTokenAlgorithm|oauth\.resources/);
    }
  }
});

test('a refused request writes one log line with its id and the exact reason, and no secret', async (context) => {
  const lines: string[] = [];
  const port = await freePort();
  const config = { ...server.config, port, baseUrl: `http://localhost:${port}` };
  const logged = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: server.databaseUrl,
    secret: testSecret,
    logger: pino({ level: 'info' }, { write: (line: string) => void lines.push(line) }),
  });
  context.after(() => logged.close());
  const { headers, body } = await postForm(config, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code: 'a-code-that-is-not',
    redirect_uri: client.redirectUri,
    code_verifier: 'v'.repeat(43),
  });
  assert.equal(body.error, 'invalid_grant');
  const refusals = lines
    .map((line) => JSON.parse(line))
    .filter((line) => line.msg === 'protocol request rejected');
  assert.equal(refusals.length, 1);
  assert.equal(refusals[0].request_id, headers.get('request-id'));
  assert.equal(refusals[0].client, client.id);
  assert.equal(refusals[0].reason, 'authorization code not found');
  for (const secret of [client.secret ?? '', 'a-code-that-is-not', 'v'.repeat(43)]) {
    assert.ok(!lines.join('').includes(secret));
  }
});

test('the audit log records registrations, grants, tokens, withdrawals and keys', async () => {
  const app = await createTestClient(server);
  const { grantId } = await authorize(server, { account, client: app, scopes: ['read:posts'] });
  await withdrawGrant(server.db, grantId, 'user');
  await until('the token is in the log', async () => {
    const rows = await readAuditLog(server.db, { clientId: app.id, limit: 100 });
    return rows.some((row) => row.kind === 'token.issued');
  });
  const rows = await readAuditLog(server.db, { clientId: app.id, limit: 100 });
  const kinds = rows.map((row) => row.kind).sort();
  assert.deepEqual(kinds, ['client.registered', 'grant.created', 'grant.withdrawn', 'token.issued']);
  assert.deepEqual(rows.find((row) => row.kind === 'grant.withdrawn')?.details, { reason: 'user' });
  const keys = await readAuditLog(server.db, { kind: 'key.', limit: 100 });
  assert.ok(keys.length >= 2);
});

test('housekeeping deletes expired records and nothing else', async () => {
  const live = await authorize(server, { account, client, scopes: ['read:posts'] });
  await sql`
    insert into refresh_tokens (digest, grant_id, payload, expires_at)
    select sha256(n::text::bytea), gen_random_uuid(), '{}', now() - interval '2 hours'
    from generate_series(1, 2500) n`.execute(server.db);
  await sql`
    insert into used_proofs (digest, expires_at)
    select sha256(n::text::bytea), now() - interval '1 second' from generate_series(1, 10) n`.execute(
    server.db,
  );
  const left = await runHousekeeping(server.db);
  assert.equal(left.refresh_tokens, 2_500);
  assert.ok((left.used_proofs ?? 0) >= 10);
  const { status } = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: live.refreshToken,
  });
  assert.equal(status, 200);
  const again = await runHousekeeping(server.db);
  assert.equal(again.refresh_tokens, undefined);
});

test('a table that housekeeping cannot clear is named, and does not block the others', async () => {
  await sql`
    insert into used_proofs (digest, expires_at) values (sha256('late'), now() - interval '1 second')`.execute(
    server.db,
  );
  await sql`alter table authorization_codes rename to elsewhere`.execute(server.db);
  try {
    await assert.rejects(runHousekeeping(server.db), (error) => {
      assert.ok(error instanceof AggregateError);
      assert.equal(error.errors.length, 1);
      assert.match(error.message, /^authorization_codes: /);
      return true;
    });
  } finally {
    await sql`alter table elsewhere rename to authorization_codes`.execute(server.db);
  }
  const { rows } = await sql`select from used_proofs where digest = sha256('late')`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('a superseded grant is deleted once nothing depends on it', async () => {
  const user = await createTestAccount(server);
  const app = await createTestClient(server);
  const scopes = ['read:posts'];
  const first = await authorize(server, { account: user, client: app, scopes });
  const wider = await authorize(server, {
    account: user,
    client: app,
    scopes: ['read:profile', 'read:posts'],
  });
  const alive = await authorize(server, { account: user, client: app, scopes });
  const last = await authorize(server, { account: user, client: app, scopes });
  const old = [first.grantId, wider.grantId, alive.grantId];
  await sql`
    update grants set created_at = created_at - interval '3 days' where id = any(${old}::uuid[])`.execute(
    server.db,
  );
  await sql`
    update refresh_tokens set expires_at = now() - interval '1 minute'
    where grant_id = any(${[first.grantId, wider.grantId]}::uuid[])`.execute(server.db);
  await deleteSupersededGrants(server.db);
  const { rows } = await sql<{ id: string }>`
    select id from grants where account_id = ${user.id} order by id`.execute(server.db);
  assert.deepEqual(
    rows.map((row) => row.id),
    [wider.grantId, alive.grantId, last.grantId].sort(),
  );
});

test('replacing a secret leaves no gap: two work, then one', async () => {
  const app = await createTestClient(server);
  const works = async (secret: string | null) => {
    const form = { grant_type: 'client_credentials', scope: 'read:posts' };
    return (await postForm(server, '/oauth/token', { ...app, secret }, form)).status === 200;
  };
  const second = await rotateClientSecret(server.db, app.id, 2);
  await until('the new secret works', () => works(second));
  assert.equal(await works(app.secret), true);
  await until('the old secret ends', async () => !(await works(app.secret)));
  assert.equal(await works(second), true);
  const third = await rotateClientSecret(server.db, app.id, 0);
  await until('the second ends at once', async () => !(await works(second)));
  assert.equal(await works(third), true);
});

test('keys rotate refuses when its secret differs from the servers’ secret', async () => {
  const other = Buffer.from('another secret than the server’s, 32 bytes');
  const count = async () => {
    const { rows } = await sql`
      select id, expires_at from signing_keys union all select id, signs_until from delivery_keys
      order by id`.execute(server.db);
    return rows;
  };
  const before = await count();
  await assert.rejects(rotateSigningKeys(server.db, other), /signing keys .* different NUNCIO_SECRET/);
  await assert.rejects(rotateDeliveryKey(server.db, other), /delivery keys .* different NUNCIO_SECRET/);
  assert.deepEqual(await count(), before);
});
