/** Deliveries signed with the deployment's own key, verified with the published key. */

import assert from 'node:assert/strict';
import { createPrivateKey, createPublicKey, type KeyObject, verify } from 'node:crypto';
import { after, test } from 'node:test';
import { createRemoteJWKSet, decodeJwt, type JWK, jwtVerify, SignJWT } from 'jose';
import { sql } from 'kysely';
import { loadDeliveryKeys, rotateDeliveryKey } from '../../../src/webhooks/sending/delivery_key.ts';
import { signEd25519 } from '../../../src/webhooks/subscriptions/signature.ts';
import { clientToken, createTestClient } from '../../support/clients/oauth.ts';
import { runCommand } from '../../support/servers/process.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

/** The DER prefixes (RFC 8410) of the 32 bytes of a private and of a public key. */
const privatePrefix = Buffer.from('302e020100300506032b657004220420', 'hex');
const publicPrefix = Buffer.from('302a300506032b6570032100', 'hex');
const privateKeyOf = (seed: Buffer) =>
  createPrivateKey({ key: Buffer.concat([privatePrefix, seed]), format: 'der', type: 'pkcs8' });
const publicKeyOf = (whpk: string) => {
  const bytes = Buffer.from(whpk.replace(/^whpk_/, ''), 'base64');
  return createPublicKey({ key: Buffer.concat([publicPrefix, bytes]), format: 'der', type: 'spki' });
};

/** Verifies as the Standard Webhooks specification asks of a receiver. */
function isSignedBy(key: KeyObject, { headers, body }: Pick<Received, 'headers' | 'body'>): boolean {
  const content = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
  return String(headers['webhook-signature'])
    .split(' ')
    .map((value) => value.split(','))
    .some(
      ([version, signature = '']) =>
        version === 'v1a' && verify(null, Buffer.from(content), key, Buffer.from(signature, 'base64')),
    );
}

interface PublicKey {
  kid: string;
  key: string;
  signs_from: string;
  signs_until: string | null;
}

async function publishedKeys(): Promise<PublicKey[]> {
  const answer = await fetch(`${server.baseUrl}/meta`);
  return ((await answer.json()) as { public_keys: PublicKey[] }).public_keys;
}

test('webhooks 37: ed25519 signs the Standard Webhooks vector', () => {
  const whsk = '6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==';
  const seed = Buffer.from(whsk, 'base64').subarray(0, 32);
  const id = 'msg_p5jXN8AQM9LWM0D4loKWxJek';
  const body = Buffer.from('{"test": 2432232314}');
  const value = signEd25519([privateKeyOf(seed)], id, 1_614_265_330, body);
  assert.equal(
    value,
    'v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==',
  );
  const headers = { 'webhook-id': id, 'webhook-timestamp': '1614265330', 'webhook-signature': value };
  const key = publicKeyOf('whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=');
  assert.ok(isSignedBy(key, { headers, body: body.toString() }));
  assert.ok(!isSignedBy(key, { headers, body: `${body} ` }));
});

test('webhooks 38, 79: an `ed25519` signature verifies with the key at /meta and in the JWKS', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, signature: 'ed25519' });
  await publish(publisher, app.account, ['Zoë 🚀']);
  const [received] = (await subscriber.waitFor(1)) as [Received];
  const [published] = (await publishedKeys()) as [PublicKey];
  assert.match(published.key, /^whpk_[A-Za-z0-9+/]{43}=$/);
  assert.ok(isSignedBy(publicKeyOf(published.key), received));
  assert.ok(!isSignedBy(publicKeyOf(published.key), { ...received, body: `${received.body} ` }));
  assert.match(received.headers['webhook-id'] as string, /^[0-9a-f-]{36}$/);
  assert.equal(received.headers['nuncio-event'], 'push');
  assert.equal(received.headers['nuncio-signature'], undefined);

  const { keys } = (await (await fetch(`${server.baseUrl}/oauth/jwks`)).json()) as { keys: JWK[] };
  const jwk = keys.find(({ kid }) => kid === published.kid) as JWK;
  assert.deepEqual(Object.keys(jwk).sort(), ['alg', 'crv', 'kid', 'kty', 'use', 'x']);
  assert.deepEqual([jwk.kty, jwk.crv, jwk.use, jwk.alg], ['OKP', 'Ed25519', 'sig', 'EdDSA']);
  assert.ok(isSignedBy(createPublicKey({ key: jwk as never, format: 'jwk' }), received));
});

test('attack: another subscriber’s signed delivery names its own account in a CloudEvent, but not in a header', async (t) => {
  const subscriber = await startSubscriber(t);
  const [victim, attacker] = [await createApp(server), await createApp(server)];
  for (const format of ['json', 'cloudevents'])
    await subscribe(attacker, { url: subscriber.url, format, signature: 'ed25519' });
  await publish(publisher, attacker.account, ['x']);
  const [published] = (await publishedKeys()) as [PublicKey];
  const key = publicKeyOf(published.key);
  for (const received of await subscriber.waitFor(2)) {
    const headers = { ...received.headers, 'nuncio-account': victim.account.id };
    // Signatures do not cover headers, and all subscriptions share the key (docs/api.md).
    assert.ok(isSignedBy(key, { ...received, headers }));
    if (!received.body.includes('specversion')) continue;
    assert.equal(JSON.parse(received.body).source, `/accounts/${attacker.account.id}`);
    const forged = received.body.replace(attacker.account.id, victim.account.id);
    assert.notEqual(forged, received.body);
    assert.ok(!isSignedBy(key, { headers, body: forged }));
  }
});

test('webhooks 79: the delivery key disturbs no token check, and signs no valid token', async () => {
  const client = await createTestClient(server);
  const token = await clientToken(server, client, ['read:posts']);
  const keySet = createRemoteJWKSet(new URL(`${server.baseUrl}/oauth/jwks`));
  await jwtVerify(token, keySet, { issuer: server.baseUrl, audience: server.baseUrl });
  const open = async (bearer: string) =>
    (await fetch(`${server.baseUrl}/api`, { headers: { authorization: `Bearer ${bearer}` } })).status;
  assert.equal(await open(token), 200);
  const [key] = await loadDeliveryKeys(server.db, testSecret);
  assert.ok(key !== undefined);
  for (const kid of [key.kid, undefined]) {
    const header = { alg: 'EdDSA', typ: 'at+jwt', ...(kid === undefined ? {} : { kid }) };
    const forged = await new SignJWT(decodeJwt(token)).setProtectedHeader(header).sign(key.privateKey);
    assert.equal(await open(forged), 401);
  }
  const metadata = (await (
    await fetch(`${server.baseUrl}/.well-known/openid-configuration`)
  ).json()) as Record<string, unknown>;
  assert.deepEqual(
    ['EdDSA', 'Ed25519'].filter((alg) =>
      (metadata.id_token_signing_alg_values_supported as string[]).includes(alg),
    ),
    [],
  );
});

test('webhooks 40, 78: a new delivery key is published before it signs, overlaps, and is sealed at rest', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, signature: 'ed25519' });
  const [old] = (await publishedKeys()) as [PublicKey];
  const next = await rotateDeliveryKey(server.db, testSecret, 2);
  const both = await until(publishedKeys, (keys) => keys.length === 2);
  assert.deepEqual(
    both.map(({ kid }) => kid),
    [next, old.kid],
  );
  assert.equal(both[0]?.signs_until, null);
  assert.ok(Date.parse(both[1]?.signs_until ?? '') > Date.now() + 6 * 86_400_000);
  const [newKey, oldKey] = both.map(({ key }) => publicKeyOf(key)) as [KeyObject, KeyObject];
  const receive = async (count: number) => {
    await publish(publisher, app.account, [count]);
    const received = (await subscriber.waitFor(count)).at(-1) as Received;
    return [isSignedBy(newKey, received), isSignedBy(oldKey, received)];
  };
  assert.deepEqual(await receive(1), [false, true], 'published, not signing yet');
  await until(
    async () => Date.now() - Date.parse(both[0]?.signs_from ?? ''),
    (ms) => ms > 500,
  );
  assert.deepEqual(await receive(2), [true, true]);
  // The signature of the newest key comes first.
  const [first] = String(subscriber.received[1]?.headers['webhook-signature']).split(' ');
  const alone = {
    ...(subscriber.received[1] as Received),
    headers: { ...subscriber.received[1]?.headers, 'webhook-signature': first as string },
  };
  assert.ok(isSignedBy(newKey, alone));
  await sql`update delivery_keys set signs_until = now() where id = ${old.kid}`.execute(server.db);
  await until(publishedKeys, (keys) => Date.parse(keys[1]?.signs_until ?? '') < Date.now() + 60_000);
  // Whoever signs learns of it later than whoever publishes the keys.
  let sent = 2;
  const signed = await until(
    () => receive(++sent),
    ([, isOfOld]) => isOfOld === false,
  );
  assert.deepEqual(signed, [true, false], 'replaced, and still published');
  assert.equal((await publishedKeys()).length, 2);
  await sql`update delivery_keys set expires_at = now() where id = ${old.kid}`.execute(server.db);
  await until(publishedKeys, (keys) => keys.length === 1);

  const { rows } = await sql<{ sealed: Buffer }>`select sealed from delivery_keys`.execute(server.db);
  const keys = await loadDeliveryKeys(server.db, testSecret);
  for (const { privateKey } of keys) {
    const { d } = privateKey.export({ format: 'jwk' });
    const bytes = Buffer.from(d as string, 'base64url');
    for (const { sealed } of rows) {
      assert.ok(!sealed.includes(bytes));
      assert.ok(!sealed.includes(d as string));
    }
  }
  await assert.rejects(
    loadDeliveryKeys(server.db, Buffer.alloc(32, 1)),
    /delivery keys .* different NUNCIO_SECRET/,
  );
});

test('nuncio keys rotate` replaces the delivery key, to', async () => {
  const settings = { DATABASE_URL: server.databaseUrl, NUNCIO_SECRET: testSecret.toString() };
  const { code, stdout, stderr } = await runCommand(['keys', 'rotate', '--json'], settings);
  assert.equal(code, 0, stderr);
  const { kids, delivery_kid: kid } = JSON.parse(stdout);
  assert.equal(kids.length, 2);
  const [first, second] = await until(publishedKeys, (keys) => keys.length === 2);
  assert.equal(first?.kid, kid);
  assert.ok(Date.parse(first?.signs_from ?? '') > Date.now() + 500_000);
  assert.equal(second?.signs_until === null, false);
});
