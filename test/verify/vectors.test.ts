/** The cases that the libraries of all languages share, and that the server signs as they say. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import {
  type Delivery,
  type HeaderNames,
  type HeaderPreset,
  type PublicKeyList,
  VerificationError,
  verify,
} from '../../src/verify/verify.ts';

interface Case {
  name: string;
  secrets?: string[];
  public_keys?: PublicKeyList;
  /** The keys come from a function that fails. */
  keys_fail?: true;
  header_names?: HeaderPreset | Partial<HeaderNames>;
  tolerance?: number;
  headers: Record<string, string | string[]> | [string, string][];
  body?: string | null;
  body_base64?: string;
  delivery?: Delivery;
  error?: string;
}

const file = new URL('../vectors/signatures.json', import.meta.url);
const { cases } = JSON.parse(readFileSync(file, 'utf8')) as { cases: Case[] };

function run({ secrets, public_keys, keys_fail, header_names, tolerance, ...each }: Case): Promise<Delivery> {
  const { headers, body, body_base64 } = each;
  return verify({
    headers,
    // A case can have what the types exclude.
    body: body_base64 === undefined ? (body as string) : Buffer.from(body_base64, 'base64'),
    secrets,
    publicKeys: keys_fail ? () => Promise.reject(new Error('no keys')) : public_keys,
    headerNames: header_names,
    tolerance: tolerance ?? 1e12,
  });
}

for (const each of cases) {
  test(`vector: ${each.name}`, async () => {
    if (each.error === undefined) return assert.deepEqual(await run(each), each.delivery);
    await assert.rejects(run(each), (error) => {
      assert.ok(error instanceof VerificationError, String(error));
      assert.equal(error.code, each.error);
      for (const secret of (each.secrets ?? []).filter(({ length }) => length > 10))
        assert.ok(!error.message.includes(secret.trim()));
      return true;
    });
  });
}

test('there are vectors of each published example, each format and each code that a request can cause', () => {
  assert.ok(cases.every(({ delivery, error }) => (delivery === undefined) !== (error === undefined)));
  assert.equal(new Set(cases.map(({ name }) => name)).size, cases.length);
  for (const words of ['published example of GitHub', 'Stripe’s library', 'published example of Svix'])
    assert.ok(
      cases.some(({ name, delivery }) => name.includes(words) && delivery !== undefined),
      words,
    );
  for (const format of ['timestamp', 'sha256', 'standard', 'ed25519'])
    assert.ok(cases.filter(({ name, delivery }) => name.startsWith(format) && delivery).length >= 3, format);
  const source = readFileSync(new URL('../../src/verify/error.ts', import.meta.url), 'utf8');
  const codes = [...source.matchAll(/^ {2}'([a-z-]+)': \d+,$/gm)].map(([, code]) => code as string);
  // The body's size is limited where it is read: in the adapters.
  for (const code of codes.filter((each) => each !== 'body-too-large'))
    assert.ok(
      cases.some(({ error }) => error === code),
      code,
    );
});
