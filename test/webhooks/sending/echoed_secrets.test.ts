/** The search for secrets in responses: it finds what `replaceAll` finds, and takes little time for any secrets and texts. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { hideInBody, hideInText, sentSecrets } from '../../../src/webhooks/sending/echoed_secrets.ts';

/** Texts of two letters repeat themselves in many ways. */
const twoLetters = (minLength: number, maxLength: number) =>
  fc.string({ unit: fc.constantFrom('a', 'b'), minLength, maxLength });

test('every occurrence is hidden', () => {
  fc.assert(
    fc.property(twoLetters(8, 12), twoLetters(0, 60), twoLetters(0, 20), (secret, before, after) => {
      const text = `${before}${secret}${after}`;
      const expected = text.replaceAll(secret, '***');
      assert.equal(hideInText(text, [secret]), expected);
      assert.equal(hideInBody(Buffer.from(text), false, [secret])?.toString(), expected);
    }),
    { numRuns: 2_000 },
  );
});

test('the start of a secret at a cut end is hidden', () => {
  fc.assert(
    fc.property(twoLetters(9, 14), twoLetters(0, 40), fc.nat(14), (secret, before, length) => {
      const text = before + secret.slice(0, length);
      fc.pre(!text.includes(secret));
      const shown = hideInBody(Buffer.from(text), true, [secret])?.toString();
      const lengths = Array.from({ length: secret.length - 8 }, (_, index) => secret.length - 1 - index);
      const cut = lengths.find((each) => text.endsWith(secret.slice(0, each)));
      assert.equal(shown, cut === undefined ? text : `${text.slice(0, -cut)}***`);
    }),
    { numRuns: 2_000 },
  );
});

test('attack: secrets and responses that are slow to compare take little time', () => {
  // Ten headers of the maximum size, each in two forms because of the quotation mark.
  const value = (index: number) => `${'a'.repeat(512 - index)}"${'a'.repeat(511 + index)}`;
  const headers = Array.from({ length: 10 }, (_, index) => `x-${index}: ${value(index)}\r\n`);
  const secrets = sentSecrets({ headerLines: headers.join(''), auth: null }, null);
  assert.equal(secrets.length, 20);
  const text = 'a'.repeat(16_384);
  const used = process.cpuUsage();
  for (let count = 0; count < 10; count += 1) {
    hideInText(text, secrets);
    hideInBody(Buffer.from(text), true, secrets);
  }
  const { user } = process.cpuUsage(used);
  // With `replaceAll`, it takes a second.
  assert.ok(user < 300_000, `${user} µs`);
});
