import assert from 'node:assert/strict';
import { generateKeyPairSync, verify } from 'node:crypto';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { ProviderKey } from '../../src/oauth/provider_key.ts';

test('signatures requested in one turn are computed together, each over its own data', async () => {
  const pair = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const key = new ProviderKey({ ...pair.privateKey.export({ format: 'jwk' }), kid: 'k', alg: 'ES256' });
  const texts = ['one', 'two', 'three'].map((text) => Buffer.from(text));
  const made: string[] = [];
  const signatures = texts.map(async (data) => {
    const signature = await key.sign(data);
    made.push(String(data));
    return signature;
  });
  for (let step = 0; step < 100; step += 1) await Promise.resolve();
  assert.deepEqual(made, []);
  await turn();
  assert.deepEqual(made, ['one', 'two', 'three']);
  for (const [index, data] of texts.entries()) {
    const signature = (await signatures[index]) as Uint8Array;
    assert.equal(signature.length, 64);
    assert.ok(verify('sha256', data, { key: pair.publicKey, dsaEncoding: 'ieee-p1363' }, signature));
  }
});

test('a signature that fails rejects alone', async () => {
  const pair = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const key = new ProviderKey({ ...pair.privateKey.export({ format: 'jwk' }), kid: 'k', alg: 'ES256' });
  const [bad, good] = await Promise.allSettled([key.sign(1 as never), key.sign(Buffer.from('good'))]);
  assert.equal(bad.status, 'rejected');
  assert.equal(good.status, 'fulfilled');
});
