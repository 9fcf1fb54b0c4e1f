/** The cases that the libraries of all languages share, and that the server signs as they say. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { type Delivery, type HeaderPreset, VerificationError, verify } from '../../src/verify/verify.ts';

interface Case {
  name: string;
  secrets?: string[];
  public_keys?: { kid: string; key: string }[];
  header_names?: HeaderPreset;
  tolerance?: number;
  headers: Record<string, string>;
  body: string;
  delivery?: Delivery;
  error?: string;
}

const file = new URL('../vectors/signatures.json', import.meta.url);
const { cases } = JSON.parse(readFileSync(file, 'utf8')) as { cases: Case[] };

function run({ secrets, public_keys, header_names, tolerance, headers, body }: Case): Promise<Delivery> {
  return verify({
    headers,
    body,
    secrets,
    publicKeys: public_keys,
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
      for (const secret of each.secrets ?? []) assert.ok(!error.message.includes(secret.trim()));
      return true;
    });
  });
}

test('there are vectors of each outcome', () => {
  assert.ok(cases.filter(({ delivery }) => delivery !== undefined).length >= 12);
  assert.ok(cases.every(({ delivery, error }) => (delivery === undefined) !== (error === undefined)));
});
