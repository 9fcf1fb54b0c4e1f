/** String lengths in schemas, counted as the validator counts them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ajv } from 'ajv';
import fc from 'fast-check';
import { replaceLengthKeywords } from '../../src/events/string_length.ts';

test('string length counts characters, not UTF-16 units', () => {
  const own = new Ajv();
  replaceLengthKeywords(own);
  const text = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 12 }),
    // Includes halves of surrogate pairs.
    fc
      .array(fc.constantFrom('a', 'ß', '🚀', '\ud83d', '\ude80'), { maxLength: 12 })
      .map((parts) => parts.join('')),
  );
  const validators = Array.from({ length: 13 }, (_, limit) =>
    [{ maxLength: limit }, { minLength: limit }].map((schema) => ({
      expected: new Ajv().compile({ type: 'string', ...schema }),
      found: own.compile({ type: 'string', ...schema }),
    })),
  ).flat();
  fc.assert(
    fc.property(text, (value) => {
      for (const { expected, found } of validators) {
        assert.equal(found(value), expected(value), JSON.stringify(value));
        assert.deepEqual(found.errors, expected.errors);
      }
    }),
  );
});
