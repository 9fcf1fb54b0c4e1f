/** The search for secrets in responses: it finds what `replaceAll` finds, and takes little time for any secrets and texts. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  hideInBody,
  hideInHeaders,
  hideInText,
  sentSecrets,
} from '../../../src/webhooks/sending/echoed_secrets.ts';
import { timesAsMuch } from '../../support/processor_time.ts';

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

test('attack: a secret that looks like a part of JSON leaves headers that can be read, or none', () => {
  const json = JSON.stringify({ 'content-type': 'aaaaaaaa', server: 'bbbbbbbb' });
  assert.equal(hideInHeaders(json, ['":"aaaaaaaa']), null);
  assert.equal(hideInHeaders(json, ['bbbbbbbb']), json.replace('bbbbbbbb', '***'));
  assert.equal(hideInHeaders(json, ['cccccccc']), json);
});

test('attack: secrets and responses that are slow to compare take little time', async () => {
  // Ten headers of the maximum size, each in two forms because of the quotation mark.
  const value = (index: number) => `${'a'.repeat(512 - index)}"${'a'.repeat(511 + index)}`;
  const headers = Array.from({ length: 10 }, (_, index) => `x-${index}: ${value(index)}\r\n`);
  const secrets = sentSecrets({ headerLines: headers.join(''), auth: null }, null);
  assert.equal(secrets.length, 20);
  const search = (letter: string) => () => {
    const text = letter.repeat(16_384);
    hideInText(text, secrets);
    hideInBody(Buffer.from(text), true, secrets);
  };
  // Twice as much as what has nothing in common, and with `replaceAll` some hundred times.
  const ratio = await timesAsMuch(search('a'), search('b'));
  assert.ok(ratio < 20, String(ratio));
});
