/** `nuncio/protect` and key-bound tokens (RFC 9449 sections 4.3, 7, 9 and 11.1). */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { exportJWK, generateSecret } from 'jose';
import {
  createProtector,
  createReplayStore,
  type ErrorResponse,
  type Grant,
  type Protector,
} from '../../src/protect/protect.ts';
import { createProof, createProofKey, type ProofChanges } from '../support/clients/dpop_proof.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const origin = 'https://notes.example';
const url = `${origin}/notes`;
const server = await startTestServer({ after });
const protect = createProtector({
  issuer: server.baseUrl,
  url: origin,
  audience: server.baseUrl,
  offline: true,
});
const key = await createProofKey();
const token = await mint({ cnf: { jkt: key.jkt } });

async function mint(claims: Record<string, unknown>): Promise<string> {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  return (await mintAccessToken(server, { account, client, scopes: ['read:posts'], claims })).accessToken;
}

function send(
  dpop: string | string[] | undefined,
  options: { authorization?: string; target?: string; protector?: Protector } = {},
): Promise<Grant | ErrorResponse> {
  const { authorization = `DPoP ${token}`, target = '/notes', protector = protect } = options;
  return protector.check({ method: 'GET', url: target, headers: { authorization, dpop } }, 'read:posts');
}

function prove(changes: ProofChanges = {}, by = key): Promise<string> {
  return createProof(by, { method: 'GET', url, token }, changes);
}

function assertRefused(outcome: Grant | ErrorResponse, error: string, why: string): void {
  assert.ok(!outcome.granted, `${why} was let through`);
  assert.equal(outcome.status, 401, why);
  const challenge = outcome.headers['www-authenticate'] ?? '';
  assert.match(challenge, new RegExp(`^DPoP error="${error}"`), why);
  assert.match(challenge, /algs="ES256 Ed25519 EdDSA"/, why);
  assert.match(challenge, /resource_metadata="/, why);
}

test('oauth 81: (protect) a bound token with a valid proof is accepted for each offered algorithm', async () => {
  const outcome = await send(await prove());
  assert.ok(outcome.granted);
  for (const algorithm of ['ES256', 'Ed25519', 'EdDSA']) {
    const other = await createProofKey(algorithm);
    const bound = await mint({ cnf: { jkt: other.jkt } });
    const proof = await createProof(
      other,
      { method: 'GET', url, token: bound },
      { header: { alg: algorithm } },
    );
    assert.ok((await send(proof, { authorization: `dpop ${bound}` })).granted, algorithm);
  }
});

test('oauth 78: (protect) every invalid proof is refused', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const stranger = await createProofKey();
  const secret = await exportJWK(await generateSecret('HS256', { extractable: true }));
  const faults: Record<string, ProofChanges> = {
    'another type': { header: { typ: 'JWT' } },
    'no type': { header: { typ: undefined } },
    'no key': { header: { jwk: undefined } },
    'a private key': { header: { jwk: await exportJWK(key.privateKey) } },
    'a secret as key': { header: { jwk: secret } },
    'another key’s signature': { header: { jwk: stranger.publicJwk } },
    'another method': { claims: { htm: 'POST' } },
    'a method in lower case': { claims: { htm: 'get' } },
    'no method': { claims: { htm: undefined } },
    'another path': { claims: { htu: `${origin}/notes/1` } },
    'another host': { claims: { htu: 'https://evil.example/notes' } },
    'another protocol': { claims: { htu: 'http://notes.example/notes' } },
    'no URL': { claims: { htu: undefined } },
    'half a URL': { claims: { htu: '/notes' } },
    'another token': { claims: { ath: 'fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo' } },
    'no token': { claims: { ath: undefined } },
    'over a minute old': { claims: { iat: now - 62 } },
    'over a minute ahead': { claims: { iat: now + 63 } },
    'no time': { claims: { iat: undefined } },
    'time as text': { claims: { iat: String(now) } },
    'no jti': { claims: { jti: undefined } },
    'an empty jti': { claims: { jti: '' } },
    'a jti without end': { claims: { jti: 'x'.repeat(600) } },
    'too much text': { claims: { filler: 'x'.repeat(8_192) } },
  };
  for (const [why, changes] of Object.entries(faults)) {
    const proof = await prove(changes).catch(() => 'not a proof');
    assert.notEqual(proof, 'not a proof', why);
    assertRefused(await send(proof), 'invalid_dpop_proof', why);
  }
  const [header, payload, signature] = (await prove()).split('.') as [string, string, string];
  const none = Buffer.from(JSON.stringify({ alg: 'none', typ: 'dpop+jwt', jwk: key.publicJwk }));
  const texts = {
    'no proof': undefined,
    'no JWT': 'abc',
    'alg none': `${none.toString('base64url')}.${payload}.`,
    'a changed payload': `${header}.${Buffer.from('{}').toString('base64url')}.${signature}`,
  };
  for (const [why, proof] of Object.entries(texts)) {
    assertRefused(await send(proof), 'invalid_dpop_proof', why);
  }
});

test('oauth 78: (protect) a proof with an algorithm that is not offered is refused', async () => {
  for (const algorithm of ['ES384', 'PS256', 'RS256']) {
    const other = await createProofKey(algorithm);
    const bound = await mint({ cnf: { jkt: other.jkt } });
    const request = { method: 'GET', url, token: bound };
    const proof = await createProof(other, request, { header: { alg: algorithm } });
    assertRefused(await send(proof, { authorization: `DPoP ${bound}` }), 'invalid_dpop_proof', algorithm);
  }
});

test('oauth 78: (protect) two DPoP headers are refused, also when Node joined them', async () => {
  const [one, two] = [await prove(), await prove()];
  assertRefused(await send([one, two]), 'invalid_dpop_proof', 'two values');
  assertRefused(await send(`${one}, ${two}`), 'invalid_dpop_proof', 'joined values');
});

test('oauth 78: (protect) query, fragment and the request’s host do not count', async () => {
  assert.ok((await send(await prove(), { target: '/notes?page=2' })).granted);
  assert.ok((await send(await prove({ claims: { htu: `${url}?page=1#top` } }))).granted);
  assert.ok((await send(await prove({ claims: { htu: 'HTTPS://Notes.Example:443/notes' } }))).granted);
  // An absolute URL as the request target (RFC 9112 section 3.2.2), or a path that looks like a host.
  assert.ok((await send(await prove(), { target: 'https://notes.example/notes' })).granted);
  const elsewhere = await prove({ claims: { htu: 'https://evil.example/notes' } });
  for (const target of ['https://evil.example/notes', '//evil.example/notes']) {
    assertRefused(await send(elsewhere, { target }), 'invalid_dpop_proof', target);
  }
});

test('oauth 79: (protect) a proof 50 s old or ahead is accepted', async () => {
  const now = Math.floor(Date.now() / 1_000);
  for (const iat of [now - 50, now - 10, now + 10, now + 50]) {
    assert.ok((await send(await prove({ claims: { iat } }))).granted, String(iat - now));
  }
});

test('oauth 78: (protect) exactly one of 20 concurrent requests with one proof passes', async () => {
  const proof = await prove();
  const outcomes = await Promise.all(Array.from({ length: 20 }, () => send(proof)));
  assert.equal(outcomes.filter(({ granted }) => granted).length, 1);
  for (const outcome of outcomes.filter(({ granted }) => !granted)) {
    assertRefused(outcome, 'invalid_dpop_proof', 'a replay');
  }
});

test('attack: accounts cannot fill the proof store for others, and nobody passes when it is full', async () => {
  const errors: string[] = [];
  const protector = createProtector({
    issuer: server.baseUrl,
    url: origin,
    audience: server.baseUrl,
    offline: true,
    replays: createReplayStore(4),
    onError: (error) => errors.push(error.message),
  });
  const statusFor = async (bound: string): Promise<number> => {
    const proof = await createProof(key, { method: 'GET', url, token: bound });
    const outcome = await send(proof, { authorization: `DPoP ${bound}`, protector });
    return outcome.granted ? 200 : outcome.status;
  };
  assert.equal(await statusFor(token), 200);
  assert.equal(await statusFor(token), 200);
  assert.equal(await statusFor(token), 503);
  const mintBound = () => mint({ cnf: { jkt: key.jkt } });
  const other = await mintBound();
  assert.equal(await statusFor(other), 200);
  assert.equal(await statusFor(other), 503);
  assert.equal(await statusFor(await mintBound()), 200);
  assert.equal(await statusFor(await mintBound()), 503);
  assert.match(errors[0] ?? '', /^the store is full for [0-9a-f-]{36}: 2 DPoP proofs$/);
  assert.match(errors[1] ?? '', /^the store is full for [0-9a-f-]{36}: 1 DPoP proofs$/);
  assert.equal(errors[2], 'the store is full: 4 DPoP proofs');
});

test('a proof store forgets expired proofs, and gives their room back', () => {
  const store = createReplayStore(4);
  const later = () => Date.now() + 60_000;
  for (let round = 0; round < 5; round += 1) {
    assert.equal(store.use('a', Date.now() - 1, 'x'), true);
    assert.equal(store.use('b', Date.now() - 1, 'x'), true);
  }
  assert.equal(store.use('c', later(), 'x'), true);
  assert.equal(store.use('c', later(), 'x'), false);
  assert.equal(store.use('a', later(), 'x'), true);
  assert.throws(() => store.use('b', later(), 'x'), /full for x/);
  assert.equal(store.use('b', later(), 'y'), true);
});

test('oauth 82: (protect) a bound token as Bearer and an unbound token as DPoP are 401', async () => {
  assertRefused(
    await send(await prove(), { authorization: `Bearer ${token}` }),
    'invalid_token',
    'bound as Bearer',
  );
  assertRefused(await send(undefined, { authorization: `Bearer ${token}` }), 'invalid_token', 'no proof');
  const unbound = await mint({});
  const proof = await createProof(key, { method: 'GET', url, token: unbound });
  assertRefused(await send(proof, { authorization: `DPoP ${unbound}` }), 'invalid_token', 'unbound as DPoP');
});

test('oauth 81: (protect) a proof with another key than the token’s is refused', async () => {
  const stranger = await createProofKey();
  assertRefused(await send(await prove({}, stranger)), 'invalid_dpop_proof', 'a stranger');
});

test('oauth 84: (protect) either scheme refuses a token bound to a certificate or in an unknown way', async () => {
  for (const cnf of [{ 'x5t#S256': 'abc' }, { jkt: key.jkt, 'x5t#S256': 'abc' }, { kid: 'x' }, {}]) {
    const bound = await mint({ cnf });
    const proof = await createProof(key, { method: 'GET', url, token: bound });
    for (const scheme of ['Bearer', 'DPoP']) {
      const outcome = await send(proof, { authorization: `${scheme} ${bound}` });
      assert.ok(!outcome.granted, JSON.stringify(cnf));
      assert.equal(outcome.status, 401);
      assert.match(outcome.headers['www-authenticate'] ?? '', /error="invalid_token"/);
    }
  }
});

test('oauth 80: (protect) a required nonce is given with 401 use_dpop_nonce and accepted everywhere', async () => {
  const options = {
    issuer: server.baseUrl,
    url: origin,
    audience: server.baseUrl,
    offline: true,
    dpopNonceSecret: 'a secret of the notes, 32 bytes or more',
  };
  const [one, two] = [createProtector(options), createProtector(options)];
  for (const nonce of [undefined, 'invented', 7]) {
    const outcome = await send(await prove({ claims: { nonce } }), { protector: one });
    assertRefused(outcome, 'use_dpop_nonce', String(nonce));
    assert.ok(!outcome.granted);
    const given = outcome.headers['dpop-nonce'];
    assert.ok(given);
    const next = await send(await prove({ claims: { nonce: given } }), { protector: two });
    assert.ok(next.granted, 'the nonce of one process is good for the other');
  }
});

test('oauth 80: (protect) an outgoing nonce still works, and the response carries its successor', async (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() });
  const protector = createProtector({
    issuer: server.baseUrl,
    url: origin,
    audience: server.baseUrl,
    offline: true,
    dpopNonceSecret: 'a secret of the notes, 32 bytes or more',
  });
  const first = await send(await prove(), { protector });
  assert.ok(!first.granted);
  const nonce = first.headers['dpop-nonce'];
  const now = await send(await prove({ claims: { nonce } }), { protector });
  assert.ok(now.granted);
  assert.deepEqual(now.headers, {});
  t.mock.timers.tick(60_000);
  const later = await send(await prove({ claims: { nonce } }), { protector });
  assert.ok(later.granted);
  assert.notEqual(later.headers['dpop-nonce'], nonce);
  assert.ok(later.headers['dpop-nonce']);
  t.mock.timers.tick(60_000);
  assertRefused(
    await send(await prove({ claims: { nonce } }), { protector }),
    'use_dpop_nonce',
    'two minutes later',
  );
});
